#include "attach/peer_auth.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <cstring>
#include <thread>

#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

void bring_loopback_up() {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP;
  EXPECT_EQ(::ioctl(fd, SIOCSIFFLAGS, &request), 0);
  ::close(fd);
}

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
  EXPECT_EQ(why_untrusted(pair.fd(0), rendezvous[0], route), reasons::Why::kNone);
  route.remote.port ^= 1;  // not the socket's
  EXPECT_EQ(why_untrusted(pair.fd(0), rendezvous[0], route), reasons::Why::kOtherNetwork);
  for (const int fd : rendezvous) ::close(fd);
}

// As a proxy has it that serves several containers: another connection may have the same ends.
TEST(Trust, IsNotGivenToAConnectionOfANetworkNamespaceThatTheThreadHasLeft) {
  int rendezvous[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, rendezvous), 0);
  bool entered = false;
  reasons::Why there{}, here{};
  std::thread([&] {
    const int home = ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    if (::unshare(CLONE_NEWNET) != 0) return;
    bring_loopback_up();
    TcpPair pair;
    Route route;
    entered = route_of(pair.fd(0), &route);
    there = why_untrusted(pair.fd(0), rendezvous[0], route);
    entered = entered && ::setns(home, CLONE_NEWNET) == 0;
    here = why_untrusted(pair.fd(0), rendezvous[0], route);
    ::close(home);
  }).join();
  for (const int fd : rendezvous) ::close(fd);
  if (!entered) GTEST_SKIP() << "no right to make a network namespace";
  EXPECT_EQ(there, reasons::Why::kNone);
  EXPECT_EQ(here, reasons::Why::kOtherNetwork);
}

}  // namespace
}  // namespace clan::preload
