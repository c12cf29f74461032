// System calls of the library's own, and errno as it was.
#include "os/sys.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>

namespace clan::preload {
namespace {

TEST(SystemCalls, AnswerAsTheCLibraryDoes) {
  errno = 0;
  EXPECT_EQ(sys::close(-1), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(sys::call(SYS_getpid), ::getpid());
}

TEST(SystemCalls, SendReceiveAndPoll) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  pollfd p{pair[1], POLLIN, 0};
  EXPECT_EQ(sys::poll(&p, 1, 0), 0);
  EXPECT_EQ(sys::send(pair[0], "ab", 2, 0), 2);
  EXPECT_EQ(sys::poll(&p, 1, -1), 1);
  char text[4];
  EXPECT_EQ(sys::recv(pair[1], text, sizeof text, MSG_PEEK), 2);
  EXPECT_EQ(sys::recv(pair[1], text, sizeof text, 0), 2);
  EXPECT_EQ(sys::recv(pair[1], text, sizeof text, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  for (const int fd : pair) sys::close(fd);
}

TEST(SystemCalls, KeepAnOptionOfASocket) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  ASSERT_EQ(sys::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes), 0);
  int now = 0;
  socklen_t size = sizeof now;
  ASSERT_EQ(sys::getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &now, &size), 0);
  EXPECT_EQ(now, 1);
  sys::close(fd);
}

TEST(KeepErrnoTest, ShowsNothingOfWhatIsDoneMeanwhile) {
  errno = ENOENT;
  {
    const KeepErrno keep;
    sys::close(-1);
    EXPECT_EQ(errno, EBADF);
  }
  EXPECT_EQ(errno, ENOENT);
}

}  // namespace
}  // namespace clan::preload
