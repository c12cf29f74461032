// Real threads, real futexes: producers post, one consumer takes and sleeps. A lost wake-up is a
// time-out.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/futex.h"
#include "clan/detail/clock.h"
#include "nic/nic.h"
#include "nic/wakeup.h"

namespace clan::nic {
namespace {

constexpr std::uint32_t kQueue = 3;
constexpr std::uint64_t kLostAfterNs = 20'000'000'000u;

// Events that share a leaf word, a mid word, the root, or nothing but the queue.
constexpr std::array<std::uint32_t, 8> kEvents{0,    1,    63,    64,
                                               4095, 4096, 40000, shm::kEventsPerQueue - 1};

struct EventRace {
  std::unique_ptr<Nic> nic;
  std::array<std::atomic<std::uint32_t>, kEvents.size()> sequence{};  // the data of each event
  std::atomic<int> running{0};

  void produce(unsigned seed, std::uint64_t until_ns, bool pauses) {
    std::mt19937 random(seed);
    const NicImage image = nic->image();
    while (monotonic_ns() < until_ns) {
      const unsigned burst = random() % 8 + 1;
      for (unsigned i = 0; i < burst; ++i) {
        const std::size_t n = random() % kEvents.size();
        sequence[n].fetch_add(1, std::memory_order_relaxed);  // relaxed: published by the event
        post_event(image, kQueue, kEvents[n]);
      }
      if (pauses && random() % 4 == 0) ::usleep(random() % 60);
    }
    running.fetch_sub(1);
    post_event(image, kQueue, kEvents[0]);
  }
};

void race_events(int producers, bool pauses) {
  auto nic = Nic::create(NodeId{1}, ::geteuid());
  ASSERT_TRUE(nic) << nic.error().message();
  EventRace race;
  race.nic = std::move(*nic);
  race.running = producers;
  const std::uint64_t until = monotonic_ns() + 700'000'000u;
  std::vector<std::thread> threads;
  for (int i = 0; i < producers; ++i) {
    threads.emplace_back(
        [&race, i, until, pauses] { race.produce(static_cast<unsigned>(i) + 1, until, pauses); });
  }
  shm::EventQueueMemory& q = race.nic->image().signals->queues[kQueue];
  std::array<std::uint32_t, kEvents.size()> known{};
  std::uint32_t cursor = 0;
  std::uint64_t sleeps = 0, taken = 0;
  bool lost = false;
  for (;;) {
    std::uint32_t base = 0;
    std::uint64_t bits = take_events(q, &cursor, &base);
    if (bits == 0) {
      if (race.running == 0 && q.root.load() == 0) break;
      std::uint32_t word = 0;
      if (!prepare_sleep(q, shm::kSleepsOnFutex, &word)) continue;
      if (race.running == 0 && q.root.load() == 0) break;
      ++sleeps;
      if (futex_wait(q.sleeping, word, monotonic_ns() + kLostAfterNs) == ETIMEDOUT) {
        lost = true;
        break;
      }
      continue;
    }
    for (; bits != 0; bits &= bits - 1) {
      const std::uint32_t event = base + static_cast<std::uint32_t>(std::countr_zero(bits));
      const auto n = static_cast<std::size_t>(std::find(kEvents.begin(), kEvents.end(), event) -
                                              kEvents.begin());
      EXPECT_LT(n, kEvents.size()) << "event " << event << " was never posted";
      if (n == kEvents.size()) continue;
      known[n] = race.sequence[n].load(std::memory_order_relaxed);  // relaxed: after its event
      ++taken;
    }
  }
  for (auto& t : threads) t.join();
  // What was posted between the last look and the join.
  std::uint32_t base = 0;
  while (std::uint64_t bits = take_events(q, &cursor, &base)) {
    for (; bits != 0; bits &= bits - 1) {
      const std::uint32_t event = base + static_cast<std::uint32_t>(std::countr_zero(bits));
      const auto n = static_cast<std::size_t>(std::find(kEvents.begin(), kEvents.end(), event) -
                                              kEvents.begin());
      ASSERT_LT(n, kEvents.size());
      known[n] = race.sequence[n].load(std::memory_order_relaxed);
    }
  }
  EXPECT_FALSE(lost) << "asleep, nobody woke it";
  for (std::size_t n = 0; n < kEvents.size(); ++n) {
    EXPECT_EQ(known[n], race.sequence[n].load()) << "event " << kEvents[n];
  }
  EXPECT_GT(taken, 0u);
  if (pauses) {
    EXPECT_GT(sleeps, 0u);
  }
}

TEST(EventQueueStress, LosesNothingOfOneProducer) { race_events(1, true); }
TEST(EventQueueStress, LosesNothingOfThreeProducers) { race_events(3, true); }
TEST(EventQueueStress, LosesNothingOfProducersThatNeverPause) { race_events(3, false); }

// One shot, thousands of times: arm, look, sleep, against a sender that stores, fences and fires.
TEST(TripwireStress, WakesItsSleeperEveryTime) {
  auto made = Nic::create(NodeId{1}, ::geteuid());
  ASSERT_TRUE(made);
  Nic& nic = **made;
  auto block = MemoryBlock::create(8192);
  ASSERT_TRUE(block);
  auto cookie = nic.export_aperture({(*block)->data(), 8192, Rights::kReadWrite, *block});
  ASSERT_TRUE(cookie);
  auto tripwire = nic.add_tripwire({cookie->aperture, 64, 8});
  ASSERT_TRUE(tripwire);
  auto& data = *reinterpret_cast<std::atomic<std::uint32_t>*>((*block)->data() + 64);
  const NicImage image = nic.image();
  const bool light = shm::AsymmetricFence::register_process();
  std::atomic<std::uint32_t> consumed{0};
  constexpr std::uint32_t kMessages = 20000;
  std::thread sender([&] {
    std::mt19937 random(3);
    const auto& armed = image.tables->apertures[cookie->aperture].armed;
    for (std::uint32_t n = 1; n <= kMessages; ++n) {
      data.store(n, std::memory_order_release);
      std::uint64_t chunks;
      if (light) {
        chunks = armed_chunks_after_store<shm::AsymmetricFence>(armed);
      } else {
        shm::AsymmetricFence::full();
        chunks = armed.load(std::memory_order_relaxed);
      }
      if (chunks != 0) match_tripwires(image, cookie->aperture, 64, 8, AccessKind::kWrite);
      const std::uint64_t give_up = monotonic_ns() + 2 * kLostAfterNs;
      while (consumed.load(std::memory_order_acquire) < n && monotonic_ns() < give_up) {
        if (random() % 2 == 0) sched_yield();
      }
    }
  });
  auto& signal = image.signals->tripwires[*tripwire];
  std::uint32_t known = 0;
  bool lost = false;
  std::uint64_t sleeps = 0;
  while (known < kMessages && !lost) {
    const std::uint32_t now = data.load(std::memory_order_acquire);
    if (now != known) {
      EXPECT_EQ(now, known + 1);
      known = now;
      consumed.store(now, std::memory_order_release);
      continue;
    }
    const std::uint32_t seen = signal.fired.prepare_wait();
    nic.arm(*tripwire);
    if (data.load(std::memory_order_acquire) == known) {
      ++sleeps;
      lost = signal.fired.commit_wait([seen](auto& news) {
        return futex_wait(news, seen, monotonic_ns() + kLostAfterNs);
      }) == ETIMEDOUT;
    }
    nic.disarm(*tripwire);
    (void)nic.test_and_clear(*tripwire);
  }
  consumed = kMessages;
  sender.join();
  EXPECT_FALSE(lost) << "after message " << known;
  EXPECT_GT(sleeps, 0u);
}

}  // namespace
}  // namespace clan::nic
