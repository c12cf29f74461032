#include "wait/set_lock.h"

#include <atomic>
#include <memory>
#include <thread>

#include "preload/wait/set.h"
#include "state/face.h"
#include "wait/ready_check.h"
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

  TcpPair other;
  int second = make_set();
};

TEST_F(TwoSets, AreLockedEachByItself) {
  std::atomic<bool> locked{false};
  std::thread thread;
  {
    const Guard guard(epfd);
    ASSERT_TRUE(guard);
    std::thread([&] { EXPECT_TRUE(Guard(second)); }).join();
    thread = std::thread([&] {
      const Guard same(epfd);
      locked = true;
    });
    std::this_thread::yield();
    EXPECT_FALSE(locked);
  }
  thread.join();
  EXPECT_TRUE(locked);
}

TEST_F(TwoSets, AreAllLockedForFork) {
  std::atomic<int> locked{0};
  lock_epoll();
  const auto lock = [&](int of) {
    const Guard guard(of);
    ++locked;
  };
  std::thread one(lock, epfd), other_one(lock, second);
  std::this_thread::yield();
  EXPECT_EQ(locked, 0);
  unlock_epoll();
  one.join();
  other_one.join();
  EXPECT_EQ(locked, 2);
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

struct DueBehindALock : EpollSet {
  DueBehindALock() {
    EXPECT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
    add_state(pair.socket(0).mine(), socket_face::kLeaving);
  }
  Interest& interest() const { return *find(epfd)->interests.at[0]; }
  static bool has_gone(const Socket& s) { return (state_of(s.mine()) & socket_face::kGone) != 0; }
};

TEST_F(DueBehindALock, IsDoneWhenTheThreadHasLetGoOfIt) {
  Socket& s = pair.socket(1);
  const int refs = s.refs.load();
  {
    const Guard guard(epfd);
    EXPECT_FALSE(guard.owes());
    (void)ready_event_of(interest());
    (void)ready_event_of(interest());
    EXPECT_TRUE(guard.owes());
    EXPECT_EQ(t_due.count, 1);
    EXPECT_EQ(s.refs.load(), refs + 1);
    EXPECT_FALSE(has_gone(s)) << "a check does nothing";
  }
  EXPECT_TRUE(has_gone(s));
  EXPECT_EQ(t_due.count, 0);
  EXPECT_EQ(s.refs.load(), refs);
}

TEST_F(DueBehindALock, IsNotDoneForTheSuccessorOfASocketThatHasBeenClosed) {
  TcpPair other;
  other.migrate();
  const int fd = other.fd(1);
  const SocketRef s = other.held(1);
  {
    const Guard guard(epfd);
    note_due(fd, *s);
    forget(fd);
    add_state(other.socket(0).mine(), socket_face::kLeaving);
  }
  EXPECT_EQ(t_due.count, 0);
  EXPECT_FALSE(has_gone(*s));
}

TEST_F(DueBehindALock, IsLeftToTheNextCheckWhereItIsTooMuch) {
  std::unique_ptr<TcpPair> pairs[Due::kMost + 2];
  for (auto& one : pairs) {
    one = std::make_unique<TcpPair>();
    one->migrate();
  }
  const Guard guard(epfd);
  for (auto& one : pairs) note_due(one->fd(1), one->socket(1));
  EXPECT_EQ(t_due.count, Due::kMost);
}

}  // namespace
}  // namespace clan::preload
