#include "attach/find_pipe.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>

#include "clan/detail/clock.h"
#include "kernel/tcp.h"
#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

TEST(FindPipe, FindsTheOneOfAConnectionByItsCookie) {
  TcpPair pair;
  pair.migrate();
  int end = -1;
  const int memfd = find_pipe(cookie_of(pair.fd(0)), &end);
  ASSERT_GE(memfd, 0);
  EXPECT_EQ(end, 0);
  auto pipe = open_pipe_of(memfd, end, cookie_of(pair.fd(0)));
  ASSERT_TRUE(pipe);
  EXPECT_EQ(pipe->inode(), pair.socket(0).pipe.inode());
}

TEST(FindPipe, FindsItAmongThoseThatWerePassed) {
  TcpPair pair, other;
  pair.migrate();
  other.migrate();
  const int passed[] = {::open("/dev/null", O_RDWR | O_CLOEXEC), other.socket(0).pipe.memfd(),
                        pair.socket(0).pipe.memfd()};
  int end = -1;
  const int memfd = find_among(passed, cookie_of(pair.fd(1)), &end);
  auto pipe = open_pipe_of(memfd, 1, cookie_of(pair.fd(1)));
  EXPECT_EQ(end, 1);
  ASSERT_TRUE(pipe);
  EXPECT_EQ(pipe->inode(), pair.socket(1).pipe.inode());
  ::close(passed[0]);
}

TEST(FindPipe, TakesNoneOfAnotherConnection) {
  TcpPair pair, other;
  pair.migrate();
  int end = -1;
  EXPECT_LT(find_pipe(cookie_of(other.fd(0)), &end), 0);
  EXPECT_FALSE(open_pipe_of(::dup(pair.socket(0).pipe.memfd()), 0, cookie_of(other.fd(0))));
  EXPECT_FALSE(open_pipe_of(-1, 0, 1));
}

// A stranger's, under a lease: to open it would wait for as long as leases are broken.
TEST(FindPipe, DoesNotWaitForAFileThatSomebodyHasALeaseOn) {
  const int memfd = ::memfd_create("clan-pipe", MFD_CLOEXEC);
  char name[64];
  std::snprintf(name, sizeof name, "/proc/self/fd/%d", memfd);
  const int readable = ::open(name, O_RDONLY | O_CLOEXEC);
  ASSERT_GE(readable, 0);
  ::close(memfd);
  if (::fcntl(readable, F_SETLEASE, F_RDLCK) != 0) GTEST_SKIP() << "no leases here";
  const auto before = ::signal(SIGIO, SIG_IGN);  // by which the kernel asks for it
  int end = -1;
  const std::uint64_t began = monotonic_ns();
  EXPECT_LT(find_pipe(~std::uint64_t{0}, &end), 0);
  EXPECT_LT(monotonic_ns() - began, 20'000'000'000u);
  ::signal(SIGIO, before);
  ::close(readable);
}

}  // namespace
}  // namespace clan::preload
