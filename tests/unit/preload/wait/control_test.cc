#include <cerrno>

#include "preload/wait/set.h"

namespace clan::preload {
namespace {

struct Control : EpollSet {};

TEST_F(Control, SaysWhatTheKernelWouldSay) {
  EXPECT_EQ(ask(EPOLL_CTL_MOD, EPOLLIN), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  EXPECT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), -1);
  EXPECT_EQ(errno, EEXIST);
  EXPECT_EQ(control(epfd, EPOLL_CTL_MOD, pair.fd(1), nullptr), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(ask(EPOLL_CTL_MOD, EPOLLIN | EPOLLEXCLUSIVE), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ask(EPOLL_CTL_DEL, 0), 0);
  EXPECT_EQ(ask(EPOLL_CTL_DEL, 0), -1);
  EXPECT_EQ(errno, ENOENT);
}

TEST_F(Control, TakesASocketOutAndInAgain) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  ASSERT_EQ(ask(EPOLL_CTL_DEL, 0), 0);
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_EQ(wait().size(), 0u);
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  EXPECT_EQ(told(), EPOLLIN);
}

TEST_F(Control, AsksForRoomFromNowOn) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN, 1), 0);
  EXPECT_EQ(told(), 0u);
  ASSERT_EQ(pair.send(1, "y"), 1);  // its direction has to be in the pipe to have room there
  ASSERT_EQ(ask(EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT), 0);
  EXPECT_EQ(told(), EPOLLOUT);
}

}  // namespace
}  // namespace clan::preload
