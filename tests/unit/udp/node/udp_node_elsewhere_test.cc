// Threads that sleep where the node does not see it, as in epoll_wait() of a program, on a
// descriptor that packets make readable.
#include <clan/aperture.h>
#include <clan/event_queue.h>
#include <clan/rdma.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "engine/context/context_core.h"
#include "support/held_driver.h"
#include "support/pattern.h"
#include "udp/sleep_fixture.h"

namespace clan::test {
namespace {

using std::chrono::milliseconds;

class ElsewhereTest : public SleepTest {};

/// An epoll set of both descriptors.
Fd set_of(EventQueue& queue, std::uint32_t how) {
  Fd set(::epoll_create1(EPOLL_CLOEXEC));
  for (const int fd : {must(queue.fd()), queue.packets_fd()}) {
    epoll_event event{};
    event.events = EPOLLIN | how;
    EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event), 0);
  }
  return set;
}

void answer_elsewhere(Context& context, Stream& stream, int times, std::uint32_t how) {
  auto queue = must(EventQueue::create(context));
  ASSERT_TRUE(stream.register_with(queue, 1).ok());
  const Fd set = set_of(queue, how);
  for (int done = 0; done < times;) {
    Event events[4];
    std::byte byte{};
    if (queue.arm_packets() && queue.poll(events) == 0 && queue.arm_fd_for_sleep()) {
      epoll_event ready;
      ASSERT_EQ(::epoll_wait(set.get(), &ready, 1, 20'000), 1);
    }
    for (; stream.try_recv({&byte, 1}).ok(); ++done) (void)must(stream.send({&byte, 1}));
  }
  stream.unregister();
}

/// Counts the sets of this process in which the descriptor is.
int epoll_sets_with(int fd) {
  int sets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fdinfo")) {
    std::ifstream file(entry.path());
    std::string word;
    for (int number = -1; file >> word;) {
      if (word == "tfd:" && file >> number && number == fd) ++sets;
    }
  }
  return sets;
}

/// As often as makes the driver thread stay out.
void arm(EventQueue& queue) {
  for (int i = 0; i < 4; ++i) (void)queue.arm_packets();
}

bool eventually(const auto& what) {
  for (int i = 0; i < 5'000; ++i) {
    if (what()) return true;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return false;
}

TEST_F(ElsewhereTest, PacketsNeedNoDriverThread) {
  for (const std::uint32_t how : {0u, std::uint32_t{EPOLLET}}) {
    auto [client, server] = connect();
    const HeldDriver a(a_.core()->reactor()), b(b_.core()->reactor());
    std::thread answers([&, &served = server] { answer_elsewhere(a_, served, kTimes, how); });
    ask(client, kTimes);
    answers.join();
  }
}

TEST_F(ElsewhereTest, TheDriverThreadLeavesTheSocketToAThreadThatComesOften) {
  auto [client, server] = connect();
  auto queue = must(EventQueue::create(a_));
  ASSERT_GE(queue.packets_fd(), 0);
  EXPECT_TRUE(eventually([&] { return epoll_sets_with(queue.packets_fd()) == 1; }));
  EXPECT_TRUE(eventually([&] {
    arm(queue);
    return epoll_sets_with(queue.packets_fd()) == 0;
  }));
  // And has it again when that thread does not come any more.
  EXPECT_TRUE(eventually([&] { return epoll_sets_with(queue.packets_fd()) == 1; }));
}

TEST_F(ElsewhereTest, TheDriverThreadWatchesForThreadsThatDoNotFetch) {
  auto [client, server] = connect();
  auto queue = must(EventQueue::create(a_)), other = must(EventQueue::create(a_));
  ASSERT_TRUE(other.arm_fd());  // by its descriptor only
  for (int i = 0; i < 20; ++i) {
    arm(queue);
    EXPECT_EQ(epoll_sets_with(queue.packets_fd()), 1);
  }
}

// What the peer writes needs no thread here, so nothing wakes one that has armed and is busy.
TEST_F(ElsewhereTest, ADriverThreadTakesOverFromAThreadThatDoesNotComeBack) {
  std::vector<std::byte> region(1 << 20);
  auto aperture = must(Aperture::export_region(a_, region, Rights::kReadWrite));
  auto [client, server] = connect();
  auto remote = must(RemoteAperture::import(b_, aperture.cookie(), 10'000));
  auto done_queue = must(RdmaQueue::create(b_));
  auto queue = must(EventQueue::create(a_));
  const auto bytes = pattern(region.size(), 3);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(eventually([&] {
      arm(queue);
      return epoll_sets_with(queue.packets_fd()) == 0;
    }));
    RdmaCompletion done[1];
    ASSERT_TRUE(done_queue.write(remote, 0, bytes.data(), bytes.size()).ok());
    ASSERT_TRUE(done_queue.wait(done, 10'000).ok());
    ASSERT_EQ(done[0].status, 0);
  }
  synchronize_with_driver(a_);
  EXPECT_EQ(region, bytes);
}

TEST_F(ElsewhereTest, WithoutANetworkThereAreNoPackets) {
  auto alone = must(Context::create());
  auto queue = must(EventQueue::create(alone));
  EXPECT_EQ(queue.packets_fd(), -1);
  EXPECT_TRUE(queue.arm_packets());
}

// Each sleeps in its own way, at one node. At times all do something else.
TEST_F(ElsewhereTest, ThreadsThatSleepHereAndElsewhereMissNothing) {
  std::vector<std::pair<Stream, Stream>> streams;
  for (int i = 0; i < 6; ++i) streams.push_back(connect());
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      Stream& served = streams[i].second;
      i < 2 ? answer(served, kTimes)
            : answer_elsewhere(a_, served, kTimes, i < 4 ? 0 : std::uint32_t{EPOLLET});
    });
    threads.emplace_back([&, i] {
      for (int n = 0; n < 4; ++n) {
        ask(streams[i].first, kTimes / 4);
        std::this_thread::sleep_for(milliseconds(i));
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace clan::test
