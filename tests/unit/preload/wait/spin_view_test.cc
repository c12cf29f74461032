#include "wait/spin_view.h"

#include "preload/wait/set.h"

namespace clan::preload {
namespace {

struct Views : EpollSet {
  bool take() {
    const Guard guard(epfd);
    return view.take(*find(epfd));
  }
  bool rest() { return view.rest(*find(epfd)); }
  SpinView view;
};

TEST_F(Views, AreOfNothingWhereNoSocketHasMigrated) {
  TcpPair unmoved;
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(control(epfd, EPOLL_CTL_ADD, unmoved.fd(1), &event), 0);
  EXPECT_FALSE(take());
  EXPECT_FALSE(view.any());
}

TEST_F(Views, SeeBytesWithoutTheLock) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  EXPECT_TRUE(take());
  EXPECT_FALSE(view.any());
  EXPECT_FALSE(rest());
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_TRUE(view.any());
}

TEST_F(Views, OfSeveralSocketsReachEachWithinAFewLooks) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  TcpPair others[7];
  for (TcpPair& one : others) {
    one.migrate();
    ASSERT_EQ(one.send(0, "x"), 1);
    ASSERT_EQ(one.receive(1), "x");
    epoll_event event{};
    event.events = EPOLLIN;
    ASSERT_EQ(control(epfd, EPOLL_CTL_ADD, one.fd(1), &event), 0);
  }
  ASSERT_TRUE(take());
  for (const TcpPair& one : others) {
    ASSERT_FALSE(view.any() || view.any());
    ASSERT_EQ(one.send(0, "x"), 1);
    EXPECT_TRUE(view.any() || view.any());
    ASSERT_EQ(one.receive(1), "x");
  }
}

TEST_F(Views, LeaveToTheLockWhatHasSomethingToSayOrIsASet) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_TRUE(take());
  EXPECT_FALSE(view.any());
  EXPECT_TRUE(rest());
}

TEST_F(Views, AreOutOfDateWhenWhatIsInTheSetHasChanged) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  EXPECT_TRUE(take());
  EXPECT_FALSE(rest());
  ASSERT_EQ(ask(EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT), 0);
  EXPECT_TRUE(rest());
}

TEST_F(Views, KeepTheirSocketsUntilTheyGo) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  const int refs = pair.socket(1).refs.load();
  EXPECT_TRUE(take());
  EXPECT_EQ(pair.socket(1).refs.load(), refs + 1);
  EXPECT_TRUE(take());
  EXPECT_EQ(pair.socket(1).refs.load(), refs + 1);
  {
    SpinView second;
    const Guard guard(epfd);
    EXPECT_TRUE(second.take(*find(epfd)));
    EXPECT_EQ(pair.socket(1).refs.load(), refs + 2);
  }
  EXPECT_EQ(pair.socket(1).refs.load(), refs + 1);
}

}  // namespace
}  // namespace clan::preload
