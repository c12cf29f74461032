#include "kernel/sock_diag.h"

#include <sys/stat.h>

#include "clan/detail/clock.h"
#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

TEST(SockDiag, SaysWhoseTheOtherEndIs) {
  TcpPair pair;
  Route route;
  ASSERT_TRUE(route_of(pair.fd(0), &route));
  SockDiag kernel;
  SockDiag::Found found;
  ASSERT_EQ(kernel.ask(route.remote, route.local, route.interface, &found),
            SockDiag::Answer::kFound);
  EXPECT_EQ(found.uid, ::getuid());
  struct stat other {};
  ::fstat(pair.fd(1), &other);
  EXPECT_EQ(found.inode, other.st_ino);
  EXPECT_TRUE(other_end_is_here(route, monotonic_ns()));
  route.remote.port ^= 1;
  EXPECT_EQ(kernel.ask(route.remote, route.local, route.interface, &found),
            SockDiag::Answer::kNone);
}

TEST(SockDiag, IsNotAskedForFiveSecondsAboutAnAddressThatWasElsewhere) {
  sockaddr_in own = test::loopback();  // no other test asks about this one
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 0x10203);
  const auto ends = test::tcp_ends(own);
  Route here;
  ASSERT_TRUE(route_of(ends[0], &here));
  Route absent = here;
  absent.remote.port ^= 1;
  const std::uint64_t now = monotonic_ns();
  EXPECT_TRUE(other_end_is_here(here, now));
  EXPECT_FALSE(other_end_is_here(absent, now));
  // It would say yes.
  EXPECT_FALSE(other_end_is_here(here, now + 1));
  EXPECT_FALSE(other_end_is_here(here, now + 4'999'999'999));
  EXPECT_TRUE(other_end_is_here(here, now + 5'000'000'000));
  for (const int fd : ends) ::close(fd);
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
