#include "migrate/directory_names.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <string>

namespace clan::preload {
namespace {

Endpoint endpoint(std::uint8_t host, std::uint16_t port) {
  Endpoint e;
  e.address.s6_addr[15] = host;
  e.port = port;
  return e;
}

TEST(DirectoryNames, DifferByEachPartOfTheAddresses) {
  std::set<std::uint64_t> names;
  for (std::uint8_t host = 1; host <= 10; ++host) {
    for (std::uint16_t port = 1; port <= 10; ++port) {
      names.insert(name_of(endpoint(host, port), endpoint(1, 1)));
      names.insert(name_of(endpoint(1, 1), endpoint(host, port)));
    }
  }
  EXPECT_EQ(names.size(), 199u);  // one pair is the same both ways
  EXPECT_EQ(names.count(0), 0u);
}

TEST(DirectoryNames, AreLeftOverWhenNobodyListens) {
  char directory[] = "/tmp/clan-names-XXXXXX";
  ASSERT_NE(::mkdtemp(directory), nullptr);
  sockaddr_un path{};
  path.sun_family = AF_UNIX;
  std::strcpy(path.sun_path, (std::string(directory) + "/offer").c_str());
  const int listener = unix_socket(SOCK_SEQPACKET);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&path), sizeof path), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  EXPECT_FALSE(is_left_over(path, sizeof path));
  ::close(listener);
  EXPECT_TRUE(is_left_over(path, sizeof path));
  ::unlink(path.sun_path);
  ::rmdir(directory);
}

}  // namespace
}  // namespace clan::preload
