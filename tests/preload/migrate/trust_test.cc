#include "migrate/trust.h"

#include <sys/stat.h>

#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

TEST(Trust, KnowsTheOtherEndOfALoopbackConnection) {
  TcpPair pair;
  Route route;
  ASSERT_TRUE(route_of(pair.fd(0), &route));
  EXPECT_TRUE(same_host(pair.socket(0), route));
  EXPECT_EQ(pair.socket(0).place, Socket::Place::kHere);
  struct stat other {};
  ASSERT_EQ(::fstat(pair.fd(1), &other), 0);
  EXPECT_EQ(inode_of_other_end(pair.fd(0)), other.st_ino);
}

TEST(Trust, AsksOnceOfEachConnectionWhereItsOtherEndIs) {
  TcpPair pair;
  Route route;
  ASSERT_TRUE(route_of(pair.fd(0), &route));
  Route elsewhere = route;
  elsewhere.remote.address.s6_addr[12] = 192;  // which nobody is connected to
  EXPECT_FALSE(same_host(pair.socket(0), elsewhere));
  EXPECT_FALSE(same_host(pair.socket(0), route)) << "asked again";
  EXPECT_TRUE(same_host(pair.socket(1), {route.remote, route.local, route.interface}));
}

TEST(Trust, IsGivenToTheOwnerOfTheOtherEndAtARendezvous) {
  TcpPair pair;
  Route route;
  ASSERT_TRUE(route_of(pair.fd(0), &route));
  int rendezvous[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, rendezvous), 0);
  EXPECT_EQ(distrust(rendezvous[0], route), reasons::Why::kNone);
  route.remote.port ^= 1;  // a connection that is not there
  EXPECT_EQ(distrust(rendezvous[0], route), reasons::Why::kOfferLost);
  for (const int fd : rendezvous) ::close(fd);
}

}  // namespace
}  // namespace clan::preload
