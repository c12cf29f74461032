// Threads that sleep for packets: one of them fetches for all, and what it leaves behind is seen
// to.
#include <clan/aperture.h>
#include <clan/context.h>
#include <clan/event_queue.h>
#include <clan/memory.h>
#include <clan/message.h>
#include <clan/rdma.h>
#include <clan/stream.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

#include "support/held_driver.h"
#include "support/pattern.h"
#include "support/streams.h"
#include "support/udp_pair.h"
#include "udp/sleep_fixture.h"

namespace clan::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

TEST_F(SleepTest, TwoThreadsThatSleepAreServedByTheOneInCharge) {
  auto first = connect(), second = connect();
  std::thread servers[] = {std::thread([&] { echo(first.second); }),
                           std::thread([&] { echo(second.second); })};
  std::thread clients[] = {std::thread([&] { ask(first.first, 500); }),
                           std::thread([&] { ask(second.first, 500); })};
  for (std::thread& t : clients) t.join();
  first.first.close();
  second.first.close();
  for (std::thread& t : servers) t.join();
}

// The one in charge gets what it slept for and does something else; the other must not wait for it.
TEST_F(SleepTest, OneThatLeavesHandsThePacketsToWhoeverWatches) {
  auto first = connect(), second = connect();
  const auto time_of_the_second = [&] {
    std::atomic<int> got{0};
    std::thread leaves([&] {
      std::byte byte{};
      EXPECT_EQ(must(first.second.recv({&byte, 1}, 20'000)), 1u);
      got.store(1);
      const auto end = steady_clock::now() + milliseconds(1'500);
      while (got.load() == 1 && steady_clock::now() < end)
        std::this_thread::sleep_for(milliseconds(1));
    });
    std::thread stays([&] {
      std::byte byte{};
      EXPECT_EQ(must(second.second.recv({&byte, 1}, 20'000)), 1u);
      got.store(2);
    });
    std::this_thread::sleep_for(milliseconds(50));  // both sleep, most likely
    std::byte byte{1};
    (void)must(first.first.send({&byte, 1}));
    while (got.load() == 0) std::this_thread::yield();
    const auto begin = steady_clock::now();
    (void)must(second.first.send({&byte, 1}));
    while (got.load() == 1) std::this_thread::yield();
    const auto took = steady_clock::now() - begin;
    leaves.join();
    stays.join();
    return took;
  };
  auto shortest = time_of_the_second();
  for (int more = 0; more < 4 && shortest >= milliseconds(500); ++more)  // a busy machine's
    shortest = std::min(shortest, time_of_the_second());
  EXPECT_LT(shortest, milliseconds(500));
}

// RDMA needs nothing of the peer's threads: its driver thread has to see that they have left the
// socket.
TEST_F(SleepTest, ADriverThreadTakesOverFromThreadsThatDoNotComeBack) {
  auto [client, server] = connect();
  std::vector<std::byte> region(1 << 20);
  auto aperture = must(Aperture::export_region(a_, region, Rights::kReadWrite));
  std::thread answers([&, &served = server] {
    std::byte byte{};
    for (int i = 0; i < 100; ++i) {
      ASSERT_EQ(must(served.recv({&byte, 1}, 20'000)), 1u);
      (void)must(served.send({&byte, 1}));
    }
  });
  ask(client, 100);
  answers.join();
  auto remote = must(RemoteAperture::import(b_, aperture.cookie(), 10'000));
  auto queue = must(RdmaQueue::create(b_));
  const auto bytes = pattern(region.size(), 3);
  RdmaCompletion done[1];
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(queue.write(remote, 0, bytes.data(), bytes.size()).ok());
    ASSERT_TRUE(queue.wait(done, 10'000).ok());
    ASSERT_EQ(done[0].status, 0);
    std::uint64_t word = 0;
    ASSERT_TRUE(remote.read(8, &word, sizeof word).ok());
    std::this_thread::sleep_for(milliseconds(3));
  }
  synchronize_with_driver(a_);
  EXPECT_EQ(region, bytes);
}

// One that polls puts off the look of the driver thread, and nobody can sleep on the sockets.
TEST_F(SleepTest, ADriverThreadTakesOverFromAThreadThatPolledForLong) {
  auto [client, server] = connect();
  std::vector<std::byte> region(1 << 16);
  auto aperture = must(Aperture::export_region(a_, region, Rights::kReadWrite));
  auto remote = must(RemoteAperture::import(b_, aperture.cookie(), 10'000));
  auto queue = must(RdmaQueue::create(b_));
  for (unsigned i = 0; i < 5; ++i) {
    const auto end = steady_clock::now() + milliseconds(20);
    std::byte byte{};
    while (steady_clock::now() < end) {
      const auto got = server.recv({&byte, 1}, 0);
      ASSERT_FALSE(got.ok());
      ASSERT_TRUE(got.error().err == ETIMEDOUT || got.error().err == EAGAIN);
    }
    const auto bytes = pattern(region.size(), i);
    ASSERT_TRUE(queue.write(remote, 0, bytes.data(), bytes.size()).ok());
    RdmaCompletion done[1];
    ASSERT_TRUE(queue.wait(done, 10'000).ok());
    ASSERT_EQ(done[0].status, 0);
    synchronize_with_driver(a_);
    EXPECT_EQ(region, bytes);
  }
}

TEST_F(SleepTest, AMessageEndpointFetchesWhileItSleeps) {
  const std::string messages = unique_name("sleep-messages");
  auto server = must(MessageEndpoint::create(a_, messages));
  auto client = must(MessageEndpoint::create(b_));
  auto peer = must(client.connect(name(messages), 10'000));
  std::thread answers([&] {
    std::vector<std::byte> buffer(2'000);
    for (int i = 0; i < 300; ++i) {
      auto got = must(server.recv(buffer, 20'000));
      ASSERT_TRUE(server.send(got.from, std::span(buffer).first(got.size)).ok());
    }
  });
  std::vector<std::byte> buffer(2'000);
  for (std::size_t i = 0; i < 300; ++i) {
    const auto sent = pattern(1 + i, i);
    ASSERT_TRUE(client.send(peer, sent).ok());
    ASSERT_EQ(must(client.recv(buffer, 20'000)).size, sent.size());
    ASSERT_TRUE(std::equal(sent.begin(), sent.end(), buffer.begin()));
  }
  answers.join();
}

TEST_F(SleepTest, ADeadlineEndsASleepInCharge) {
  auto [client, server] = connect();
  std::byte byte{};
  const auto begin = steady_clock::now();
  EXPECT_EQ(client.recv({&byte, 1}, 80).error().err, ETIMEDOUT);
  EXPECT_GE(steady_clock::now() - begin, milliseconds(79));
}

TEST_F(SleepTest, AnAbortByAnotherThreadWakesTheOneInCharge) {
  auto [client, server] = connect();
  std::thread sleeper([&mine = client] {
    std::byte byte{};
    EXPECT_EQ(mine.recv({&byte, 1}, 20'000).error().err, ECONNABORTED);
  });
  std::this_thread::sleep_for(milliseconds(50));
  const auto begin = steady_clock::now();
  client.abort();
  sleeper.join();
  EXPECT_LT(steady_clock::now() - begin, milliseconds(5'000));
}

// --- without the driver thread -------------------------------------------------------------------

// Asleep on the queue's descriptor and on one of its own; `told`: how often the latter.
void answer_beside(Context& context, Stream& stream, int own, int times, int* told) {
  auto queue = must(EventQueue::create(context));
  ASSERT_TRUE(stream.register_with(queue, 1).ok());
  pollfd fds[2] = {{must(queue.fd()), POLLIN, 0}, {own, POLLIN, 0}};
  for (int done = 0; done < times;) {
    Event events[4];
    std::byte byte{};
    if (queue.poll(events) == 0 && queue.arm_fd_for_sleep()) {
      ASSERT_TRUE(queue.sleep(fds, 20'000).ok());
      if (fds[1].revents != 0) ++*told, drain_eventfd(own);
    }
    for (; stream.try_recv({&byte, 1}).ok(); ++done) (void)must(stream.send({&byte, 1}));
  }
  stream.unregister();
}

TEST_F(SleepTest, AStreamsPacketsNeedNoDriverThread) {
  auto [client, server] = connect();
  const HeldDriver a(a_.core()->reactor()), b(b_.core()->reactor());
  std::thread answers([&served = server] { answer(served, kTimes); });
  ask(client, kTimes);
  answers.join();
}

TEST_F(SleepTest, PacketsForAnEventQueueBesideOtherDescriptorsNeedNoDriverThread) {
  auto [client, server] = connect();
  const Fd own(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  int told = 0;
  const HeldDriver a(a_.core()->reactor()), b(b_.core()->reactor());
  std::thread answers(
      [&, &served = server] { answer_beside(a_, served, own.get(), kTimes + 1, &told); });
  ask(client, kTimes);
  signal_eventfd(own.get());
  std::this_thread::sleep_for(milliseconds(20));  // it knows of it, most likely
  ask(client, 1);
  answers.join();
  EXPECT_EQ(told, 1);
}

TEST_F(SleepTest, TheEndOfAnRdmaRequestNeedsNoDriverThread) {
  std::vector<std::byte> region(256 << 10);
  auto aperture = must(Aperture::export_region(a_, region, Rights::kReadWrite));
  auto [client, server] = connect();
  auto remote = must(RemoteAperture::import(b_, aperture.cookie(), 10'000));
  auto queue = must(RdmaQueue::create(b_));
  const auto bytes = pattern(region.size(), 7);
  const auto write = [&] {
    RdmaCompletion done[1];
    ASSERT_TRUE(queue.write(remote, 0, bytes.data(), bytes.size()).ok());
    ASSERT_TRUE(queue.wait(done, 20'000).ok());
    ASSERT_EQ(done[0].status, 0);
  };
  write();  // the driver thread looks after pages that are new to it
  const HeldDriver held(b_.core()->reactor());
  for (int i = 0; i < 20; ++i) write();
  synchronize_with_driver(a_);
  EXPECT_EQ(region, bytes);
}

TEST_F(SleepTest, APeekAtWhatHasBeenFetchedFetchesNothing) {
  auto [client, server] = connect();
  const HeldDriver held(a_.core()->reactor());
  std::byte byte{7};
  (void)must(client.send({&byte, 1}));
  auto front = server.peek_fetched();
  for (int i = 0; i < 1000; ++i) front = server.peek_fetched();
  EXPECT_EQ(front.error().err, EAGAIN);
  const auto end = steady_clock::now() + std::chrono::seconds(20);
  while (!(front = server.peek()) && steady_clock::now() < end) {
  }
  ASSERT_TRUE(front.ok());
  front = server.peek_fetched();
  ASSERT_TRUE(front.ok());
  ASSERT_EQ(front->size(), 1u);
  EXPECT_EQ(front->front(), byte);
}

TEST_F(SleepTest, ASleepBesideOtherDescriptorsEndsWithItsTime) {
  auto [client, server] = connect();
  auto queue = must(EventQueue::create(a_));
  pollfd fds[3] = {{must(queue.fd()), POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLIN, 0}};
  ASSERT_TRUE(queue.arm_fd_for_sleep());
  const auto begin = steady_clock::now();
  EXPECT_EQ(queue.sleep(std::span(fds).first(2), 60).error().err, ETIMEDOUT);
  EXPECT_GE(steady_clock::now() - begin, milliseconds(59));
  EXPECT_EQ(queue.sleep(fds, 60).error().err, EINVAL);
  EXPECT_EQ(queue.sleep({}, 60).error().err, EINVAL);
}

TEST_F(SleepTest, ASignalEndsASleepBesideOtherDescriptors) {
  struct sigaction handler {
  }, old{};
  handler.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &handler, &old), 0);
  auto [client, server] = connect();
  std::atomic<bool> ended{false};
  std::thread sleeper([&] {
    auto queue = must(EventQueue::create(a_));
    pollfd fds[1] = {{must(queue.fd()), POLLIN, 0}};
    EXPECT_TRUE(queue.arm_fd_for_sleep());
    EXPECT_EQ(queue.sleep(fds, 20'000).error().err, EINTR);
    ended.store(true);
  });
  while (!ended.load()) {
    ::pthread_kill(sleeper.native_handle(), SIGUSR1);
    std::this_thread::sleep_for(milliseconds(1));
  }
  sleeper.join();
  ::sigaction(SIGUSR1, &old, nullptr);
}

// Each sleeps in its own way, and one or another is in charge. At times all do something else.
TEST_F(SleepTest, ThreadsThatSleepInDifferentWaysHandThePacketsToEachOther) {
  std::vector<std::pair<Stream, Stream>> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(connect());
  std::vector<std::byte> region(128 << 10);
  auto aperture = must(Aperture::export_region(a_, region, Rights::kReadWrite));
  auto remote = must(RemoteAperture::import(b_, aperture.cookie(), 10'000));
  const Fd own(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  int told = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      Stream& served = streams[i].second;
      i % 2 == 0 ? answer(served, kTimes) : answer_beside(a_, served, own.get(), kTimes, &told);
    });
    threads.emplace_back([&, i] {
      for (int n = 0; n < 4; ++n) {
        ask(streams[i].first, kTimes / 4);
        std::this_thread::sleep_for(milliseconds(i));
      }
    });
  }
  const auto bytes = pattern(region.size(), 9);
  threads.emplace_back([&] {
    auto queue = must(RdmaQueue::create(b_));
    RdmaCompletion done[1];
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE(queue.write(remote, 0, bytes.data(), bytes.size()).ok());
      ASSERT_TRUE(queue.wait(done, 20'000).ok());
      ASSERT_EQ(done[0].status, 0);
    }
  });
  for (std::thread& t : threads) t.join();
  synchronize_with_driver(a_);
  EXPECT_EQ(region, bytes);
}

// A thread that fetches a packet fires the tripwire that it sleeps for itself: it
// need not wake itself by a system call.
TEST_F(SleepTest, AThreadInChargeIsNoSleeperOnAFutex) {
  auto [client, server] = connect();
  std::thread answers([&served = server] { answer(served, 1); });
  ask(client, 1);
  answers.join();
  const HeldDriver held(b_.core()->reactor());
  const std::uint64_t sleeps = b_.core()->snapshot().sleeps;
  std::thread sleeper([&mine = client] {
    std::byte byte{};
    EXPECT_EQ(must(mine.recv({&byte, 1}, 20'000)), 1u);
  });
  while (b_.core()->snapshot().sleeps == sleeps) std::this_thread::yield();
  std::this_thread::sleep_for(milliseconds(20));  // it sleeps, most likely
  const shm::NicSignals& signals = *b_.core()->own_lane().image().signals;
  std::uint32_t armed = 0, sleepers = 0;
  for (const shm::TripwireSignal& signal : signals.tripwires) {
    armed += shm::is_armed(signal.armed.load());
    sleepers += signal.fired.sleepers.load();
  }
  EXPECT_GE(armed, 1u);
  EXPECT_EQ(sleepers, 0u);
  std::byte byte{1};
  (void)must(server.send({&byte, 1}));
  sleeper.join();
}

// Each look is a system call, and the sleep itself ends at once where something has come.
TEST(SleepWithoutLooks, AThreadThatDoesNotSpinLooksOnceBeforeItSleeps) {
  ContextOptions options;
  options.wait.mode = WaitOptions::Mode::kSleep;
  auto a = must(Context::create(options)), b = must(Context::create(options));
  UdpPair pair(*a.core(), *b.core(), {});
  auto listener = must(Listener::create(a, unique_name("looks")));
  auto client = must(Stream::connect(b, listener.address(), 10'000));
  auto server = must(listener.accept(10'000));
  std::byte byte{1};
  (void)must(client.send({&byte, 1}));
  ASSERT_EQ(must(server.recv({&byte, 1}, 20'000)), 1u);
  pair.settle();
  const HeldDriver of_a(a.core()->reactor()), of_b(b.core()->reactor());
  // One look precedes the sleep, one follows it; more where the transport has something to do, as
  // when it finds out what packets fit.
  unsigned fewest = ~0u;
  for (int i = 0; i < 20 && fewest > 2; ++i) {
    const unsigned before = pair.looks();
    EXPECT_EQ(client.recv({&byte, 1}, 30).error().err, ETIMEDOUT);
    fewest = std::min(fewest, pair.looks() - before);
  }
  EXPECT_EQ(fewest, 2u);
}

// Nothing leaves any more, and more has been queued than may be: the thread waits for room, most of
// the time asleep. A machine that is busy only gives it less.
TEST(SleepForRoom, ASenderThatHasQueuedEnoughSleepsUntilItsLinkGoes) {
  auto a = must(Context::create()), b = must(Context::create());
  UdpPair pair(*a.core(), *b.core(), {});
  constexpr std::size_t kBytes = 4 << 20;
  auto memory = must(Memory::allocate(kBytes));
  auto aperture = must(Aperture::export_memory(a, memory, 0, kBytes, Rights::kReadWrite));
  auto remote = must(RemoteAperture::import(b, aperture.cookie(), 10'000));
  pair.pause();
  std::atomic<int> err{0};
  std::thread sender([&] {
    const std::vector<std::byte> bytes(kBytes);
    auto written = remote.write(0, bytes.data(), bytes.size());
    err.store(written ? -1 : written.error().err);
  });
  clockid_t clock{};
  ASSERT_EQ(::pthread_getcpuclockid(sender.native_handle(), &clock), 0);
  const auto used = [&] {
    timespec t{};
    EXPECT_EQ(::clock_gettime(clock, &t), 0);
    return std::chrono::nanoseconds(t.tv_sec * 1'000'000'000L + t.tv_nsec);
  };
  std::this_thread::sleep_for(milliseconds(300));
  const auto begin = steady_clock::now();
  const auto before = used();
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_LT(used() - before, (steady_clock::now() - begin) / 4);
  EXPECT_EQ(err.load(), 0) << "it has not waited";
  pair.cut();
  sender.join();
  EXPECT_EQ(err.load(), ECONNRESET);
}

}  // namespace
}  // namespace clan::test
