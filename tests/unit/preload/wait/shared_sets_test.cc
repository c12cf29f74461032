// Sets over fork. What a child finds is its exit code: 0, or the number of the look that failed.
#include "wait/shared_sets.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#include <thread>

#include "clan/detail/clock.h"
#include "preload/wait/set.h"
#include "share/fork.h"
#include "state/face.h"

namespace clan::preload {
namespace {

// Parent and child take turns.
class Turns {
 public:
  Turns() { EXPECT_EQ(::pipe2(fds_, O_CLOEXEC), 0); }
  ~Turns() {
    for (const int fd : fds_) ::close(fd);
  }
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;
  void give() const { EXPECT_EQ(::write(fds_[1], "", 1), 1); }
  void take() const {
    char turn;
    EXPECT_EQ(::read(fds_[0], &turn, 1), 1);
  }

 private:
  int fds_[2];
};

struct SharedSets : EpollSet {
  SharedSets() { EXPECT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0); }
  ~SharedSets() override {
    if (child > 0) (void)ended();
  }
  template <typename Child>
  void fork(Child&& of_child) {
    child = static_cast<pid_t>(forked_by([] { return static_cast<long>(::fork()); }));
    ASSERT_GE(child, 0);
    if (child == 0) ::_exit(of_child());
  }
  int ended() {
    int status = 0;
    EXPECT_EQ(::waitpid(std::exchange(child, -1), &status, 0) > 0, true);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  Set& set() { return *find(epfd); }
  bool goes_back() { return (state_of(pair.socket(1).mine()) & socket_face::kLeaving) != 0; }
  pid_t child = -1;
  Turns parents, childs;
};

TEST_F(SharedSets, BelongToOneProcessBeforeAnyFork) {
  EXPECT_EQ(set().use, nullptr);
  EXPECT_FALSE(used_by_several(set()));
  EXPECT_FALSE(changes_shared(epfd));
  EXPECT_FALSE(changes_shared(-1));
}

TEST_F(SharedSets, BelongToTheFirstThatUsesThemUntilASecondOneDoes) {
  fork([&] {
    childs.take();
    if (!used_by_several(set())) return 1;
    if (set().use->noticed.load()) return 2;
    parents.give();
    return 0;
  });
  EXPECT_TRUE(has_shared_sets());
  EXPECT_FALSE(used_by_several(set()));
  EXPECT_FALSE(used_by_several(set())) << "it is the same one";
  childs.give();
  parents.take();
  EXPECT_TRUE(used_by_several(set()));
  EXPECT_TRUE(set().use->noticed.load());
  EXPECT_EQ(ended(), 0);
}

// A server whose first helper has ended has its set to itself.
TEST_F(SharedSets, OfAUserThatHasEndedAreAnothersAlone) {
  fork([&] { return used_by_several(set()) ? 1 : 0; });
  const pid_t first = child;
  EXPECT_EQ(ended(), 0);
  EXPECT_EQ(set().use->user.load(), first);
  EXPECT_FALSE(used_by_several(set()));
  EXPECT_EQ(set().use->user.load(), ::getpid());
}

TEST_F(SharedSets, TakeTheirSocketsBackToTcpWhenASecondOneUsesThem) {
  fork([&] {
    childs.take();
    return changes_shared(epfd) && goes_back() ? 0 : 1;
  });
  EXPECT_FALSE(used_by_several(set()));
  EXPECT_FALSE(goes_back());
  childs.give();
  // The child waits for a moment for this one to notice.
  EXPECT_EQ(ended(), 0);
  EXPECT_TRUE(goes_back());
  EXPECT_TRUE(used_by_several(set()));
  EXPECT_FALSE(set().taken_back.load()) << "here it is still to be done";
  take_back(set());
  EXPECT_TRUE(set().taken_back.load());
}

TEST_F(SharedSets, WakeTheFirstUserThatSleepsInTheKernel) {
  fork([&] {
    if (used_by_several(set())) return 1;
    parents.give();
    epoll_event event{};
    const std::uint64_t end = monotonic_ns() + 20'000'000'000u;
    while (data_of(event) != (kTag | (kTagged - 1))) {
      if (monotonic_ns() > end) return 2;
      if (sys::epoll_wait(epfd, &event, 1, 20'000) > 0) ::usleep(1'000);
    }
    return used_by_several(set()) ? 0 : 3;
  });
  parents.take();
  EXPECT_TRUE(used_by_several(set()));
  take_back(set());
  EXPECT_EQ(ended(), 0);
  EXPECT_TRUE(set().use->noticed.load());
}

// A thread that sleeps by a set without sockets is the parent's.
TEST(PlainSet, HasNoSleepersInAChild) {
  const int plain = ::fcntl(make_set(), F_DUPFD_CLOEXEC, 900);
  ASSERT_GE(plain, sets_below());
  saw_set(plain);
  const int bell = ::eventfd(0, EFD_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(sys::epoll_ctl(plain, EPOLL_CTL_ADD, bell, &event), 0);
  std::thread sleeper([&] {
    epoll_event told{};
    auto sleep = [plain](epoll_event* to, int most, std::int64_t ns) {
      return sys::epoll_wait(plain, to, most, static_cast<int>(ns / 1'000'000));
    };
    EXPECT_EQ(wait_for_events(plain, &told, 1, 20'000'000'000, sleep), 1);
  });
  while (plain_sleepers[plain].load() == 0) ::usleep(1'000);
  const long child = forked_by([] { return static_cast<long>(::fork()); });
  if (child == 0) ::_exit(plain_sleepers[plain].load() == 0 ? 0 : 1);
  int status = -1;
  EXPECT_EQ(::waitpid(static_cast<pid_t>(child), &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(::eventfd_write(bell, 1), 0);
  sleeper.join();
  for (const int fd : {plain, bell}) ::close(fd);
}

// epoll_ctl(DEL) leaves it in the kernel's set, which a child must not find there.
TEST_F(SharedSets, HaveNothingThatTheApplicationHasTakenOut) {
  ASSERT_EQ(ask(EPOLL_CTL_DEL, 0), 0);
  ASSERT_EQ(set().interests.count, 1u);
  ASSERT_TRUE(set().interests.at[0]->parked);
  ASSERT_EQ(pair.send(0, "rings"), 5);
  fork([&] {
    epoll_event event{};
    return sys::epoll_wait(epfd, &event, 1, 0);
  });
  EXPECT_EQ(set().interests.count, 0u);
  EXPECT_EQ(ended(), 0);
}

TEST_F(SharedSets, ThatAreInAnotherOneHaveNoSocketThatMoves) {
  const int outer = make_set();
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(control(outer, EPOLL_CTL_ADD, epfd, &event), 0);
  EXPECT_FALSE(pair.socket(1).shared());
  EXPECT_EQ(set().moved, 0u);
  TcpPair later;
  ASSERT_EQ(control(epfd, EPOLL_CTL_ADD, later.fd(1), &event), 0);
  EXPECT_TRUE(later.socket(1).stays_on_tcp());
  EXPECT_TRUE(set().on_tcp);
  EXPECT_EQ(find(outer), nullptr) << "it is as any other plain set";
  ASSERT_EQ(::send(later.fd(0), "x", 1, 0), 1);
  EXPECT_EQ(sys::epoll_wait(outer, &event, 1, 1'000), 1);
  ::close(outer);
}

TEST(PolledSet, IsRememberedBeforeItHasASocket) {
  const int set = make_set();
  take_off_pipes(set);
  take_off_pipes(-1);
  TcpPair later;
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(control(set, EPOLL_CTL_ADD, later.fd(1), &event), 0);
  EXPECT_TRUE(later.socket(1).stays_on_tcp());
  forget_epoll(set);
  ::close(set);
}

TEST_F(SharedSets, StayWhileAThreadComesBackToThem) {
  const int refs = set().refs;
  {
    InUse use;
    {
      const Guard guard(epfd);
      use.take(set());
      use.take(set());  // once
    }
    Set* const kept = use.get();
    EXPECT_EQ(kept->refs, refs + 1);
    forget_epoll(epfd);  // another thread closes it
    EXPECT_EQ(find(epfd), nullptr);
    EXPECT_EQ(kept->names, 0);
    EXPECT_EQ(kept->refs, 1);
    EXPECT_EQ(kept->interests.count, 1u);
  }
  EXPECT_FALSE(pair.socket(1).in_sets.load());
}

}  // namespace
}  // namespace clan::preload
