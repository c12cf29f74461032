#include "os/sock_diag.h"

#include <sys/stat.h>

#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

TEST(SockDiag, SaysWhoseTheOtherEndIs) {
  TcpPair pair;
  Route route;
  ASSERT_TRUE(route_of(pair.fd(0), &route));
  ASSERT_TRUE(SockDiag::can_tell());
  SockDiag kernel;
  SockDiag::Found found;
  ASSERT_EQ(kernel.ask(route.remote, route.local, route.interface, &found),
            SockDiag::Answer::kFound);
  EXPECT_EQ(found.uid, ::getuid());
  struct stat other {};
  ::fstat(pair.fd(1), &other);
  EXPECT_EQ(found.inode, other.st_ino);
  EXPECT_TRUE(other_end_is_here(route));
  route.remote.port ^= 1;
  EXPECT_EQ(kernel.ask(route.remote, route.local, route.interface, &found),
            SockDiag::Answer::kNone);
}

TEST(SockDiag, IsKnownFromOtherSockets) {
  SockDiag kernel;
  if (kernel.fd() < 0) GTEST_SKIP() << "no AF_NETLINK here";
  EXPECT_TRUE(SockDiag::genuine(kernel.fd()));
  TcpPair pair;
  EXPECT_FALSE(SockDiag::genuine(pair.fd(0)));
  EXPECT_FALSE(SockDiag::genuine(-1));
}

TEST(SockDiag, HasNoRouteOfWhatIsNotConnected) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  Route route;
  EXPECT_FALSE(route_of(fd, &route));
  ::close(fd);
}

}  // namespace
}  // namespace clan::preload
