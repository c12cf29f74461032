#include "wait/epoll_set.h"

#include "preload/wait/set.h"

namespace clan::preload {
namespace {

struct Sets : EpollSet {};

TEST_F(Sets, AreRememberedWhenASocketIsPutIntoThem) {
  EXPECT_FALSE(known_epoll(epfd));
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  EXPECT_TRUE(known_epoll(epfd));
  EXPECT_EQ(find(epfd)->interests.count, 1u);
  EXPECT_EQ(find(epfd)->moved.load(), 1u);
  EXPECT_TRUE(pair.socket(1).in_sets);
}

TEST_F(Sets, ForgetASocketThatIsClosed) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  pair.close(1);
  EXPECT_EQ(find(epfd)->interests.count, 0u);
}

TEST_F(Sets, LiveAsLongAsADescriptorOfThem) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  const int copy = ::dup(epfd);
  duplicate_epoll(epfd, copy);
  EXPECT_EQ(find(copy), find(epfd));
  forget_epoll(copy);
  ::close(copy);
  EXPECT_TRUE(known_epoll(epfd));
  forget_epoll_range(static_cast<unsigned>(epfd), static_cast<unsigned>(epfd));
  EXPECT_FALSE(known_epoll(epfd));
  EXPECT_FALSE(pair.socket(1).in_sets);
}

}  // namespace
}  // namespace clan::preload
