#include "wait/set_lock.h"

#include <thread>

#include "preload/wait/set.h"
#include "wait/set_events.h"

namespace clan::preload {
namespace {

/// A second set, with another socket.
struct TwoSets : EpollSet {
  TwoSets() {
    other.migrate();
    EXPECT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
    epoll_event event{};
    event.events = EPOLLIN;
    EXPECT_EQ(control(second, EPOLL_CTL_ADD, other.fd(1), &event), 0);
  }
  ~TwoSets() override {
    forget_epoll(second);
    ::close(second);
  }
  bool is_free(int of) const {
    bool free = false;
    std::thread([&] { free = bool(TryGuard(*find(of))); }).join();
    return free;
  }

  TcpPair other;
  int second = make_set();
};

TEST_F(TwoSets, AreLockedEachByItself) {
  const Guard guard(epfd);
  EXPECT_TRUE(guard);
  EXPECT_TRUE(TryGuard(*find(epfd)));
  EXPECT_TRUE(TryGuard(*find(second)));
  EXPECT_FALSE(is_free(epfd)) << "also after a glance at another one";
  EXPECT_TRUE(is_free(second));
}

TEST_F(TwoSets, AreLockedTogetherWhereOneIsInTheOther) {
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(control(second, EPOLL_CTL_ADD, epfd, &event), 0);
  for (const int of : {epfd, second}) {
    const Guard guard(of);
    EXPECT_FALSE(is_free(epfd));
    EXPECT_FALSE(is_free(second));
  }
  EXPECT_TRUE(is_free(epfd));
}

TEST_F(TwoSets, AreAllLockedForFork) {
  lock_epoll();
  EXPECT_FALSE(is_free(epfd));
  EXPECT_FALSE(is_free(second));
  unlock_epoll();
  EXPECT_TRUE(is_free(epfd));
  EXPECT_TRUE(is_free(second));
}

// The lock that the calling thread has is no reason to call a set asleep; another thread's is.
TEST_F(TwoSets, ASocketsSleepersAreAskedForUnderTheLockOfItsSetToo) {
  const Guard guard(epfd);
  EXPECT_FALSE(set_sleeps(pair.socket(1), 0));
  std::thread([&] { EXPECT_TRUE(set_sleeps(pair.socket(1), 0)); }).join();
  std::thread([&] { EXPECT_FALSE(set_sleeps(other.socket(1), 0)); }).join();
}

TEST_F(TwoSets, TellOfASocketThatIsInBothWhileItLeavesOne) {
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(control(second, EPOLL_CTL_ADD, pair.fd(1), &event), 0);
  int seen = 0;
  for_interests(pair.socket(1), [&](Interest& i) {
    ++seen;
    if (i.set == find(second)) remove(&i);
  });
  EXPECT_EQ(seen, 2);
  EXPECT_TRUE(pair.socket(1).in_sets);
  EXPECT_EQ(find(second)->interests.count, 1u);
}

}  // namespace
}  // namespace clan::preload
