#include "state/named.h"

#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

TEST(Named, SaysThePortOfTheServerAtBothEnds) {
  TcpPair pair;
  pair.socket(0).client = true;
  const Named client(pair.fd(0), pair.socket(0)), server(pair.fd(1), pair.socket(1));
  Route route;
  ASSERT_TRUE(route_of(pair.fd(1), &route));
  EXPECT_EQ(client.port(), route.local.port);
  EXPECT_EQ(server.port(), route.local.port);
  const std::string text = server.text();
  EXPECT_NE(text.find(": port " + std::to_string(server.port()) + ", fd "), std::string::npos)
      << text;
}

TEST(Named, SaysTheProcessOfTheOtherEndOnceThereIsAPipe) {
  TcpPair pair;
  pair.migrate();
  const std::string text = Named(pair.fd(0), pair.socket(0)).text();
  EXPECT_NE(text.find("with process " + std::to_string(::getpid()) + " ("), std::string::npos)
      << text;
}

TEST(Named, OfADescriptorThatIsNotConnectedHasNoPort) {
  Socket s;
  EXPECT_EQ(Named(-1, s).port(), 0u);
}

}  // namespace
}  // namespace clan::preload
