// A peer that dies at any moment costs its survivor nothing: every byte that was committed arrives,
// then ECONNRESET, soon; nothing is left behind and nobody else notices.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "clan/detail/clock.h"
#include "support/streams.h"

namespace clan {
namespace {

using namespace test;
using Mode = WaitOptions::Mode;

constexpr int kSoonMs = 5000;  // on a busy machine; usually a millisecond

// A child that echoes on one stream, for "others do not notice".
class Bystander {
 public:
  Bystander(Context& context, Listener& listener)
      : child_(Process::start([&] {
          auto own = Context::create(with_mode(Mode::kAdaptive, 4096));
          CHILD_OK(own);
          auto stream = Stream::connect(*own, listener.address(), 20'000);
          CHILD_OK(stream);
          std::byte buffer[512];
          for (;;) {
            auto n = stream->recv(buffer, 60'000);
            if (!n.ok() || *n == 0) return 0;
            CHILD_OK(stream->send({buffer, *n}, 20'000));
          }
        })),
        stream_(must(listener.accept(20'000))) {
    (void)context;
  }
  ::testing::AssertionResult answers() {
    auto out = pattern(300, 99, at_);
    if (!stream_.send(out, kSoonMs).ok()) return ::testing::AssertionFailure() << "cannot send";
    Received r = receive_pattern(stream_, 99, at_, at_ + 300, 512, kSoonMs);
    if (r.bytes != at_ + 300)
      return ::testing::AssertionFailure() << "errno " << r.err << " at " << r.bytes;
    at_ += 300;
    return ::testing::AssertionSuccess();
  }

 private:
  Process child_;
  Stream stream_;
  std::uint64_t at_ = 0;
};

TEST(Death, AfterAnyNumberOfCallsLosesNoCompletedSend) {
  auto context = must(Context::create(with_mode(Mode::kAdaptive, 4096)));
  auto listener = must(Listener::create(context, ""));
  constexpr std::uint64_t kRecord = 100;
  for (std::uint64_t n = 1; n <= 40; ++n) {
    Shared<std::atomic<std::uint64_t>> completed;
    auto child = Process::start([&] {
      KillAtStep kill(n);
      auto own = Context::create(with_mode(Mode::kAdaptive, 4096));
      CHILD_OK(own);
      auto stream = Stream::connect(*own, listener.address(), 10'000);
      CHILD_OK(stream);
      kill.step();
      for (std::uint64_t i = 0;; ++i) {
        if (i % 2 == 0) {
          auto room = stream->reserve(kRecord);
          if (!room.ok()) continue;
          kill.step();
          fill_pattern(*room, 1, i * kRecord);
          kill.step();
          stream->commit(kRecord);
        } else {
          CHILD_OK(stream->send(pattern(kRecord, 1, i * kRecord), 10'000));
        }
        ++*completed;
        kill.step();
        if (i % 5 == 4) {
          std::byte b;
          CHILD_OK(stream->recv({&b, 1}, 10'000));
          kill.step();
        }
      }
    });
    auto stream = must(listener.accept(10'000));
    std::byte ticks[64] = {};
    (void)stream.send(ticks, 1000);
    ASSERT_TRUE(child.wait(10'000).killed());
    Received r = receive_pattern(stream, 1, 0, ~std::uint64_t{0}, 4096, kSoonMs);
    ASSERT_TRUE(r.right);
    ASSERT_EQ(r.err, ECONNRESET) << "step " << n;
    ASSERT_EQ(r.bytes, *completed * kRecord) << "step " << n;
    EXPECT_ERR(stream.send(ticks, 1000), ECONNRESET);
  }
}

TEST(Death, AtAnyInstructionOfASendLosesNoCompletedSendAndTearsNone) {
  // The child stops before a send; the test single-steps it a number of instructions further and
  // kills it.
  auto context = must(Context::create(with_mode(Mode::kAdaptive, 4096)));
  auto listener = must(Listener::create(context, ""));
  Bystander bystander(context, listener);
  int complete = 0, absent = 0;
  int stride = 1, growth = 1, most = 4000;
#if defined(__SANITIZE_ADDRESS__)
  stride = 7, growth = 8, most = 40'000;
#endif
  for (int steps = 0; steps<most; steps += stride, stride += steps> 300 ? growth : 0) {
    if (complete == 3) break;
    auto child = Process::start([&] {
      auto own = Context::create(with_mode(Mode::kAdaptive, 4096));
      CHILD_OK(own);
      auto stream = Stream::connect(*own, listener.address(), 10'000);
      CHILD_OK(stream);
      auto first = pattern(150, 1, 0), second = pattern(150, 1, 150);
      CHILD_OK(stream->send(first, 1000));
      ::raise(SIGSTOP);
      (void)stream->send(second, 1000);
      for (;;) ::pause();
    });
    auto stream = must(listener.accept(10'000));
    if (::ptrace(PTRACE_SEIZE, child.pid(), nullptr, nullptr) != 0) {
      GTEST_SKIP() << "ptrace is not allowed here";
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child.pid(), &status, 0), child.pid());
    child.resume();
    bool stepping = true;
    for (int i = 0; i < steps + 40 && stepping; ++i) {  // about 40 lead out of raise()
      stepping = ::ptrace(PTRACE_SINGLESTEP, child.pid(), nullptr, nullptr) == 0 &&
                 ::waitpid(child.pid(), &status, 0) == child.pid() && WIFSTOPPED(status);
    }
    ::kill(child.pid(), SIGKILL);
    ASSERT_TRUE(child.wait(10'000).killed());
    Received r = receive_pattern(stream, 1, 0, ~std::uint64_t{0}, 4096, kSoonMs);
    ASSERT_TRUE(r.right) << "after " << steps << " instructions";
    ASSERT_EQ(r.err, ECONNRESET);
    ASSERT_TRUE(r.bytes == 150 || r.bytes == 300)
        << r.bytes << " after " << steps << " instructions";
    complete = r.bytes == 300 ? complete + 1 : 0;
    absent += r.bytes == 150 ? 1 : 0;
    if (steps % 50 == 0) {
      ASSERT_TRUE(bystander.answers());
    }
  }
  EXPECT_GT(absent, 0);
  EXPECT_GE(complete, 3) << "the send was never reached: not enough instructions";
}

TEST(Death, InTheMiddleOfLargeTransfersLeavesTheSurvivorRightAndClean) {
  const std::size_t files = files_in_dev_shm();
  auto context = must(Context::create(with_mode(Mode::kAdaptive, 64 * 1024)));
  auto listener = must(Listener::create(context, ""));
  Bystander bystander(context, listener);
  ASSERT_TRUE(bystander.answers());
  Random random(2024);
  std::size_t descriptors = 0, mappings = 0;
  std::uint64_t total = 0;
  ContextCounters before;
  for (int round = 0; round < 55; ++round) {
    auto child = Process::start([&] {
      auto own = Context::create(with_mode(Mode::kAdaptive, 64 * 1024));
      CHILD_OK(own);
      auto stream = Stream::connect(*own, listener.address(), 10'000);
      CHILD_OK(stream);
      send_pattern(*stream, 5, 0, ~std::uint64_t{0}, 200'000);
      return 1;
    });
    auto stream = must(listener.accept(10'000));
    const std::uint64_t delay_us = random.below(round % 5 == 0 ? 20'000 : 3000);
    std::thread killer([&] {
      ::usleep(static_cast<useconds_t>(delay_us));
      child.send_signal(SIGKILL);
    });
    Received r = receive_pattern(stream, 5, 0, ~std::uint64_t{0}, 100'000, kSoonMs);
    killer.join();
    ASSERT_TRUE(r.right) << "a wrong byte at " << r.bytes << " in round " << round;
    ASSERT_EQ(r.err, ECONNRESET) << "round " << round;
    ASSERT_TRUE(child.wait(10'000).killed());
    ASSERT_TRUE(bystander.answers());
    total += r.bytes;
    stream.close();
    if (round == 4) {
      ASSERT_TRUE(eventually([&] { return context.counters().links == 1; }));
      descriptors = open_descriptors();
      mappings = mapping_count();
      before = context.counters();
    }
  }
  EXPECT_GT(total, 0u);
  EXPECT_TRUE(eventually([&] { return context.counters().links == 1; }));
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= descriptors; })) << open_descriptors();
  EXPECT_LE(mapping_count(), mappings + 8);
  EXPECT_EQ(context.counters().apertures, before.apertures);
  EXPECT_EQ(context.counters().tripwires, before.tripwires);
  EXPECT_EQ(context.counters().connections_reset, 55u);
  EXPECT_EQ(context.counters().hostile_peers, 0u);
  EXPECT_LE(files_in_dev_shm(), files);
}

TEST(Death, OfAReceiverEndsItsSenderSoon) {
  for (Mode mode : {Mode::kAdaptive, Mode::kSleep}) {
    auto context = must(Context::create(with_mode(mode, 16 * 1024)));
    auto listener = must(Listener::create(context, ""));
    Random random(7);
    for (int round = 0; round < 12; ++round) {
      const bool reads = round % 2 == 0;  // or lets its ring fill up, so that the sender sleeps
      auto child = Process::start([&] {
        auto own = Context::create(with_mode(mode, 16 * 1024));
        CHILD_OK(own);
        auto stream = Stream::connect(*own, listener.address(), 10'000);
        CHILD_OK(stream);
        if (!reads) ::pause();
        receive_pattern(*stream, 6, 0, ~std::uint64_t{0});
        return 1;
      });
      auto stream = must(listener.accept(10'000));
      std::thread killer([&, delay = random.below(5000)] {
        ::usleep(static_cast<useconds_t>(delay + 1000));
        child.send_signal(SIGKILL);
      });
      const std::uint64_t start = monotonic_ns();
      (void)send_pattern(stream, 6, 0, ~std::uint64_t{0}, 50'000, 20'000);
      EXPECT_LT(monotonic_ns() - start, std::uint64_t{kSoonMs} * 1'000'000);
      EXPECT_ERR(stream.send(text("x"), 1000), ECONNRESET);
      killer.join();
      std::byte b;
      EXPECT_ERR(stream.recv({&b, 1}, 1000), ECONNRESET);
      ASSERT_TRUE(child.wait(10'000).killed());
    }
  }
}

TEST(Death, WakesEveryKindOfSleeper) {
  auto context = must(Context::create(with_mode(Mode::kSleep, 1024)));
  auto listener = must(Listener::create(context, ""));
  auto queue = must(EventQueue::create(context));
  auto epoll_queue = must(EventQueue::create(context));
  auto child = Process::start([&] {
    auto own = Context::create(with_mode(Mode::kSleep, 1024));
    CHILD_OK(own);
    std::vector<Stream> streams;
    for (int i = 0; i < 4; ++i)
      streams.push_back(must(Stream::connect(*own, listener.address(), 10'000)));
    ::pause();
    return 0;
  });
  std::vector<Stream> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(must(listener.accept(10'000)));
  std::thread receiver([&] {
    std::byte b;
    EXPECT_ERR(streams[0].recv({&b, 1}, 20'000), ECONNRESET);
  });
  std::thread sender([&] {
    auto sent = streams[1].send(pattern(5000, 1), 20'000);
    EXPECT_TRUE(!sent.ok() || *sent < 5000u);
  });
  ASSERT_OK(streams[2].register_with(queue, 2));
  std::thread waiter([&] {
    Event e[1];
    auto n = queue.wait(e, 20'000);
    ASSERT_OK(n);
    EXPECT_EQ(e[0].tag, 2u);
  });
  ASSERT_OK(streams[3].register_with(epoll_queue, 3));
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event interest{};
  interest.events = EPOLLIN;
  ASSERT_EQ(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, must(epoll_queue.fd()), &interest), 0);
  ASSERT_TRUE(epoll_queue.arm_fd());
  ::usleep(20'000);
  const std::uint64_t start = monotonic_ns();
  (void)child.kill();
  epoll_event ready;
  EXPECT_EQ(::epoll_wait(epoll.get(), &ready, 1, 20'000), 1);
  Event e[1];
  EXPECT_EQ(epoll_queue.poll(e), 1u);
  receiver.join();
  sender.join();
  waiter.join();
  EXPECT_LT(monotonic_ns() - start, std::uint64_t{kSoonMs} * 1'000'000);
}

TEST(Death, FreesTheNamesOfItsServices) {
  auto context = must(Context::create());
  const std::string name = unique_name("mortal");
  for (int round = 0; round < 5; ++round) {
    Gate ready;
    auto child = Process::start([&] {
      auto own = Context::create();
      CHILD_OK(own);
      auto listener = Listener::create(*own, name);
      CHILD_OK(listener);
      ready.open();
      ::pause();
      return 0;
    });
    ASSERT_TRUE(ready.wait());
    EXPECT_ERR(Listener::create(context, name), EADDRINUSE);
    EXPECT_OK(Stream::connect(context, name, 5000));
    (void)child.kill();
    auto listener = Listener::create(context, name);
    EXPECT_OK(listener);
  }
}

TEST(Death, DuringConnectionSetUpHurtsNobody) {
  auto context = must(Context::create(with_mode(Mode::kAdaptive, 1024)));
  const std::string name = unique_name("set-up");
  auto listener = must(Listener::create(context, name));
  Random random(11);
  std::size_t descriptors = 0;
  for (int round = 0; round < 40; ++round) {
    Gate ready;
    auto child = Process::start([&] {
      ready.open();
      for (;;) {
        auto own = Context::create(with_mode(Mode::kAdaptive, 1024));
        CHILD_OK(own);
        for (int i = 0; i < 3; ++i) {
          auto stream = Stream::connect(*own, name, 10'000);
          CHILD_OK(stream);
          (void)stream->try_send(text("hello"));
        }
      }
    });
    ASSERT_TRUE(ready.wait());
    ::usleep(static_cast<useconds_t>(random.below(4000)));
    (void)child.kill();
    while (listener.try_accept().ok()) {
    }
    if (round == 5) {
      ASSERT_TRUE(eventually([&] { return context.counters().links == 0; }));
      descriptors = open_descriptors();
    }
  }
  EXPECT_TRUE(eventually([&] { return context.counters().links == 0; }));
  while (listener.try_accept().ok()) {
  }
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= descriptors; }))
      << open_descriptors() << " descriptors, were " << descriptors;
  EXPECT_EQ(context.counters().apertures, 0u);
  EXPECT_EQ(context.counters().tripwires, 0u);
  auto other = must(Context::create());
  EXPECT_OK(Stream::connect(other, name, 5000));
}

TEST(Death, OfTheServerEndsClientsThatAreConnecting) {
  Random random(12);
  for (int round = 0; round < 25; ++round) {
    const std::string name = unique_name("short-lived");
    Gate ready;
    auto child = Process::start([&] {
      auto own = Context::create(with_mode(Mode::kAdaptive, 1024));
      CHILD_OK(own);
      auto listener = Listener::create(*own, name);
      CHILD_OK(listener);
      ready.open();
      ::pause();
      return 0;
    });
    ASSERT_TRUE(ready.wait());
    auto context = must(Context::create(with_mode(Mode::kAdaptive, 1024)));
    std::thread killer([&, delay = random.below(1500)] {
      ::usleep(static_cast<useconds_t>(delay));
      child.send_signal(SIGKILL);
    });
    const std::uint64_t start = monotonic_ns();
    for (;;) {
      auto stream = Stream::connect(context, name, 20'000);
      if (stream.ok()) continue;
      EXPECT_TRUE(stream.error().err == ECONNREFUSED || stream.error().err == ECONNRESET)
          << stream.error().message();
      break;
    }
    EXPECT_LT(monotonic_ns() - start, std::uint64_t{kSoonMs} * 1'000'000);
    killer.join();
  }
}

}  // namespace
}  // namespace clan
