#include "base/reactor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <vector>

#include "clan/detail/clock.h"
#include "support/process.h"

namespace clan {
namespace {

using test::eventually;
using test::open_descriptors;

// An eventfd under watch that runs a function when it is signalled.
class Bell final : public Pollable, public std::enable_shared_from_this<Bell> {
 public:
  using Body = std::function<void(std::uint32_t)>;
  static std::shared_ptr<Bell> create(Body body = {}) {
    auto bell = std::make_shared<Bell>();
    bell->fd_ = std::move(*create_eventfd());
    bell->body_ = std::move(body);
    return bell;
  }
  int fd() const { return fd_.get(); }
  void ring() { signal_eventfd(fd_.get()); }
  int calls() const { return calls_.load(); }
  void on_ready(std::uint32_t events) override {
    drain_eventfd(fd_.get());
    if (body_) body_(events);
    ++calls_;
  }

 private:
  Fd fd_;
  Body body_;
  std::atomic<int> calls_{0};
};

TEST(Reactor, HasNoThreadAndNoDescriptorBeforeItWatchesSomething) {
  const std::size_t before = open_descriptors();
  Reactor reactor;
  EXPECT_EQ(open_descriptors(), before);
  reactor.remove(0);
  reactor.stop();
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Reactor, CallsWhoeverIsReadyOnItsOwnThread) {
  Reactor reactor;
  std::atomic<bool> on_thread{false};
  auto bell = Bell::create([&](std::uint32_t events) {
    on_thread = reactor.on_reactor_thread() && (events & EPOLLIN) != 0;
  });
  ASSERT_TRUE(reactor.add(bell->fd(), bell));
  EXPECT_FALSE(reactor.on_reactor_thread());
  bell->ring();
  EXPECT_TRUE(eventually([&] { return bell->calls() == 1; }));
  EXPECT_TRUE(on_thread);
  bell->ring();
  EXPECT_TRUE(eventually([&] { return bell->calls() == 2; }));
}

TEST(Reactor, RefusesADescriptorThatDoesNotExist) {
  Reactor reactor;
  EXPECT_ERR(reactor.add(-1, Bell::create()), EBADF);
}

TEST(Reactor, ForgetsARemovedDescriptorAndReleasesItsPollable) {
  Reactor reactor;
  auto bell = Bell::create();
  ASSERT_TRUE(reactor.add(bell->fd(), bell));
  reactor.remove(bell->fd());
  reactor.remove(bell->fd());
  EXPECT_EQ(bell.use_count(), 1);
  bell->ring();
  auto other = Bell::create();
  ASSERT_TRUE(reactor.add(other->fd(), other));
  other->ring();
  EXPECT_TRUE(eventually([&] { return other->calls() == 1; }));
  EXPECT_EQ(bell->calls(), 0);
  ASSERT_TRUE(reactor.add(bell->fd(), bell)) << "and watches it again when asked";
  EXPECT_TRUE(eventually([&] { return bell->calls() == 1; }));
}

TEST(Reactor, LetsACallbackRemoveItselfAndAddAnother) {
  Reactor reactor;
  auto second = Bell::create();
  std::shared_ptr<Bell> first;
  first = Bell::create([&, raw = &first](std::uint32_t) {
    reactor.remove((*raw)->fd());
    EXPECT_TRUE(reactor.add(second->fd(), second));
  });
  ASSERT_TRUE(reactor.add(first->fd(), first));
  first->ring();
  second->ring();
  EXPECT_TRUE(eventually([&] { return second->calls() == 1; }));
  EXPECT_EQ(first->calls(), 1);
  first->ring();
  ::usleep(5000);
  EXPECT_EQ(first->calls(), 1);
}

TEST(Reactor, LetsACallbackRemoveAnotherThatIsReadyToo) {
  Reactor reactor;
  std::shared_ptr<Bell> bells[2];
  for (int i = 0; i < 2; ++i) {
    bells[i] = Bell::create([&, i](std::uint32_t) { reactor.remove(bells[1 - i]->fd()); });
    bells[i]->ring();
  }
  ASSERT_TRUE(reactor.add(bells[0]->fd(), bells[0]));
  ASSERT_TRUE(reactor.add(bells[1]->fd(), bells[1]));
  EXPECT_TRUE(eventually([&] { return bells[0]->calls() + bells[1]->calls() >= 1; }));
  reactor.stop();
  for (auto& bell : bells) EXPECT_LE(bell->calls(), 1);
}

TEST(Reactor, CallsOnceAtATimeUnlessThatIsRemoved) {
  const std::size_t before = open_descriptors();
  {
    Reactor reactor;
    std::atomic<int> calls{0}, removed{0};
    std::atomic<bool> on_driver{false}, early{false};
    const std::uint64_t at = monotonic_ns() + 20'000'000;
    auto never = reactor.call_at(at, [&] { removed.fetch_add(1); });
    ASSERT_TRUE(never);
    reactor.remove(*never);
    ASSERT_TRUE(reactor.call_at(at, [&] {
      early = monotonic_ns() < at;
      on_driver = reactor.on_reactor_thread();
      calls.fetch_add(1);
    }));
    ASSERT_TRUE(reactor.call_at(0, [&] { calls.fetch_add(1); })) << "a time that has passed";
    EXPECT_TRUE(eventually([&] { return calls.load() == 2; }));
    EXPECT_TRUE(on_driver.load());
    EXPECT_FALSE(early.load());
    reactor.stop();
    EXPECT_EQ(calls.load(), 2);
    EXPECT_EQ(removed.load(), 0);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Reactor, StopsEvenWhileADescriptorIsAlwaysReady) {
  Reactor reactor;
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  Fd r(fds[0]), w(fds[1]);
  ASSERT_EQ(::write(w.get(), "x", 1), 1);
  class Busy final : public Pollable {
   public:
    std::atomic<int> calls{0};
    void on_ready(std::uint32_t) override { ++calls; }
  };
  auto busy = std::make_shared<Busy>();
  ASSERT_TRUE(reactor.add(r.get(), busy));
  EXPECT_TRUE(eventually([&] { return busy->calls > 10; }));
  reactor.stop();
  EXPECT_EQ(busy.use_count(), 1);
  EXPECT_ERR(reactor.add(r.get(), busy), ESHUTDOWN);
  reactor.stop();
}

TEST(Reactor, CanBeStoppedByACallback) {
  Reactor reactor;
  auto bell = Bell::create([&](std::uint32_t) { reactor.stop(); });
  ASSERT_TRUE(reactor.add(bell->fd(), bell));
  bell->ring();
  EXPECT_TRUE(eventually([&] { return bell->calls() == 1; }));
  EXPECT_TRUE(eventually([&] { return bell.use_count() == 1; }));
  ::usleep(5000);  // its detached thread leaves run()
}

TEST(Reactor, SurvivesAddAndRemoveFromManyThreadsAtOnce) {
  std::atomic<int> heard{0};
  Reactor reactor;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        auto bell = Bell::create([&](std::uint32_t) { ++heard; });
        ASSERT_TRUE(reactor.add(bell->fd(), bell));
        bell->ring();
        if (i % 2 == 0) {
          ASSERT_TRUE(eventually([&] { return bell->calls() > 0; }));
        }
        reactor.remove(bell->fd());
      }
    });
  }
  for (auto& t : threads) t.join();
  reactor.stop();
  EXPECT_GE(heard.load(), 400);
}

TEST(Reactor, UsesNoProcessorTimeWhileNothingHappens) {
  Reactor reactor;
  auto bell = Bell::create();
  ASSERT_TRUE(reactor.add(bell->fd(), bell));
  bell->ring();
  ASSERT_TRUE(eventually([&] { return bell->calls() == 1; }));
  auto used = [] {
    timespec ts{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return ts.tv_sec * 1'000'000'000ll + ts.tv_nsec;
  };
  const long long before = used();
  ::usleep(100'000);
  EXPECT_LT(used() - before, 20'000'000);
}

TEST(Reactor, LeavesSignalsToTheApplicationsThreads) {
  static std::atomic<bool> on_driver;
  static Reactor* current;
  on_driver = false;
  Reactor reactor;
  current = &reactor;
  struct sigaction action {
  }, old{};
  action.sa_handler = [](int) {
    if (current->on_reactor_thread()) on_driver = true;
  };
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &old), 0);
  auto bell = Bell::create();
  ASSERT_TRUE(reactor.add(bell->fd(), bell));
  for (int i = 0; i < 50; ++i) ::kill(::getpid(), SIGUSR1);
  bell->ring();
  EXPECT_TRUE(eventually([&] { return bell->calls() == 1; }));
  EXPECT_FALSE(on_driver);
  ::sigaction(SIGUSR1, &old, nullptr);
}

// As programs do that close all from 3 on: they do not know whose they are.
TEST(Reactor, AThreadWhoseDescriptorsAreClosedEndsAndDoesNotSpin) {
  const pid_t child = ::fork();
  if (child == 0) {
    // By no descriptor: it would be closed as well.
    const auto threads = [] {
      struct stat tasks {};
      if (::stat("/proc/self/task", &tasks) != 0) ::_exit(3);
      return tasks.st_nlink;
    };
    const auto before = threads();
    Reactor reactor;
    auto bell = Bell::create([](std::uint32_t) { ::close_range(3, ~0u, 0); });
    if (!reactor.add(bell->fd(), bell)) ::_exit(2);
    bell->ring();
    const bool ended = eventually([&] { return threads() == before; });
    if (ended) reactor.stop();
    ::_exit(ended ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Reactor, GivesItsDescriptorsBackWhenItGoes) {
  const std::size_t before = open_descriptors();
  {
    Reactor reactor;
    auto bell = Bell::create();
    ASSERT_TRUE(reactor.add(bell->fd(), bell));
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace clan
