#include "clan/face/connection_name.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

namespace clan::test {
namespace {

ConnectionName name(const char* client, std::uint16_t client_port, const char* server,
                    std::uint16_t server_port) {
  ConnectionName made;
  EXPECT_EQ(::inet_pton(AF_INET6, client, &made.client), 1);
  EXPECT_EQ(::inet_pton(AF_INET6, server, &made.server), 1);
  made.client_port = client_port;
  made.server_port = server_port;
  return made;
}

TEST(ConnectionName, SaysBothEndsAndIsReadAgain) {
  const ConnectionName names[] = {name("::ffff:10.78.0.2", 40'000, "::ffff:10.78.0.1", 80),
                                  name("2001:db8::2", 65'535, "2001:db8::1", 1)};
  EXPECT_EQ(names[0].service(), "net1.0a4e0002.40000.0a4e0001.80");
  for (const ConnectionName& made : names) {
    ConnectionName read;
    ASSERT_TRUE(read.read(made.service())) << made.service();
    EXPECT_EQ(read.service(), made.service());
    EXPECT_EQ(std::memcmp(&read.server, &made.server, sizeof read.server), 0);
    EXPECT_EQ(std::memcmp(&read.client, &made.client, sizeof read.client), 0);
    EXPECT_EQ(read.server_port, made.server_port);
    EXPECT_EQ(read.client_port, made.client_port);
  }
}

TEST(ConnectionName, ThatIsWrittenInAnotherWayIsNone) {
  ConnectionName read;
  for (const char* text : {"", "net1.", "jobs", "net1.0a4e0002.40000.0a4e0001.",
                           "net1.0a4e0002.40000.0a4e0001.80 ", "net1.0a4e0002.40000.0a4e0001.80.1",
                           "net2.0a4e0002.40000.0a4e0001.80", "net1.0a4e0002.40000.0a4e0001.65536",
                           "net1.0a4e0002.040000.0a4e0001.80", "net1.0a4e000.40000.0a4e0001.80",
                           "net1.0A4E0002.40000.0a4e0001.80", "net1.0a4e0002.-1.0a4e0001.80",
                           "net1.0a4e00020a4e00020a4e00020a4e0002ff.40000.0a4e0001.80"}) {
    EXPECT_FALSE(read.read(text)) << text;
  }
}

}  // namespace
}  // namespace clan::test
