// What nic/wakeup.h publishes: threads that race through it with plain data. ThreadSanitizer says
// which order is missing; what the model of wakeup_model_test.cc sees is only whether a wake-up is
// lost on a machine with store buffers. order_mutants.py weakens each order for both.
#include "nic/wakeup.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "shm/nic_memory.h"
#include "support/hand_over.h"

namespace clan::nic {
namespace {

struct NoFence {
  static void light() {}
  static void heavy() {}
  static void even() {}
};

// Each event has data, which its producer writes and the consumer reads. `taken` gives them back.
struct Event {
  explicit Event(std::uint32_t n) : number(n) {}
  std::uint32_t number;
  std::uint64_t data = 0;
  std::atomic<bool> taken{true};
};

void race_events(const std::vector<std::vector<std::uint32_t>>& of_producers) {
  constexpr std::uint64_t kRounds = 60;
  auto queue = std::make_unique<shm::EventQueueMemory>();
  std::vector<std::vector<std::unique_ptr<Event>>> events;
  std::vector<std::thread> producers;
  std::vector<Event*> by_number(shm::kEventsPerQueue);
  std::size_t expected = 0;
  for (const auto& numbers : of_producers) {
    auto& own = events.emplace_back();
    for (const std::uint32_t number : numbers) {
      own.push_back(std::make_unique<Event>(number));
      by_number[number] = own.back().get();
      expected += kRounds;
    }
  }
  for (auto& own : events) {
    producers.emplace_back([&own, &queue] {
      for (std::uint64_t round = 1; round <= kRounds; ++round) {
        for (auto& event : own) {
          while (!event->taken.load(std::memory_order_acquire)) std::this_thread::yield();
          event->taken.store(false, std::memory_order_relaxed);  // relaxed: nobody else's now
          event->data = round;
          std::uint32_t word = 0;
          if (post_event_bit(*queue, event->number, &word)) end_wake(*queue, word);
        }
      }
    });
  }
  std::uint32_t cursor = 0, base = 0;
  std::uint64_t sum = 0;
  for (std::size_t found = 0; found < expected;) {
    std::uint64_t bits = take_events(*queue, &cursor, &base);
    if (bits == 0) {
      std::uint32_t word = 0;
      (void)prepare_sleep(*queue, shm::kSleepsOnFutex, &word);
      std::this_thread::yield();
    }
    for (; bits != 0; bits &= bits - 1) {
      Event& event = *by_number[base + static_cast<std::uint32_t>(__builtin_ctzll(bits))];
      sum += event.data;
      ++found;
      event.taken.store(true, std::memory_order_release);
    }
  }
  for (std::thread& producer : producers) producer.join();
  EXPECT_EQ(sum, expected / kRounds * (kRounds * (kRounds + 1) / 2));
}

TEST(WakeupRace, AnEventsDataComeWithItFromOneProducer) { race_events({{5, 70, 5000}}); }
TEST(WakeupRace, AnEventsDataComeWithItWhereProducersShareAWord) { race_events({{5}, {6}}); }
TEST(WakeupRace, AnEventsDataComeWithItWhereProducersShareAMidWord) { race_events({{5}, {70}}); }
TEST(WakeupRace, AnEventsDataComeWithItWhereProducersShareTheRoot) { race_events({{5}, {5000}}); }

constexpr std::uint64_t kArmings = 200;

// As a sender that has nobody to ring.
bool take_single_shot(std::atomic<std::uint32_t>& armed) {
  std::uint32_t word = 0;
  if (!begin_single_shot(armed, &word)) return false;
  end_single_shot(armed, word);
  return true;
}

// Lets `take(round)` of a sender race with `arm(round)` of the receiver, which goes on when the
// sender has taken the last one.
template <typename Arm, typename Take>
void race_armings(const Arm& arm, const Take& take) {
  std::atomic<std::uint64_t> fired{0};
  std::thread sender([&] {
    for (std::uint64_t round = 1; round <= kArmings; ++round) {
      while (!take(round)) std::this_thread::yield();
      fired.store(round, std::memory_order_release);
    }
  });
  for (std::uint64_t round = 1; round <= kArmings; ++round) {
    arm(round);
    while (fired.load(std::memory_order_acquire) != round) std::this_thread::yield();
  }
  sender.join();
}

// A sender reads a tripwire's entry before it claims it, as match_tripwires() does. `look` is
// its read of the table's word.
template <typename Look>
void race_entries(const Look& look) {
  std::atomic<std::uint32_t> armed{0};
  std::array<std::atomic<std::uint64_t>, kArmings + 1> tables{};
  std::array<std::uint64_t, kArmings + 1> entries{};
  race_armings(
      [&](std::uint64_t round) {
        entries[round] = round;
        announce_single_shot(armed, tables[round], 1);
      },
      [&](std::uint64_t round) {
        if (!look(tables[round])) return false;
        EXPECT_EQ(entries[round], round);
        while (!take_single_shot(armed)) std::this_thread::yield();
        return true;
      });
}

TEST(WakeupRace, ATripwiresEntryComesWithTheTablesWord) {
  race_entries([](const std::atomic<std::uint64_t>& table) {
    return armed_chunks_after_store<NoFence>(table) != 0 &&
           table.load(std::memory_order_acquire) != 0;
  });
}

TEST(WakeupRace, ATripwiresEntryComesWithTheTablesWordWherePacketsAreDelivered) {
  race_entries([](const std::atomic<std::uint64_t>& table) {
    return table.load(std::memory_order_acquire) != 0;
  });
}

// The table's word stays from one arming to the next: the claim alone tells that there is another.
TEST(WakeupRace, WhatComesBeforeArmingAgainIsSeenByItsClaim) {
  std::atomic<std::uint32_t> armed{0};
  std::atomic<std::uint64_t> table{0};
  std::uint64_t data = 0;
  race_armings(
      [&](std::uint64_t round) {
        data = round;
        announce_single_shot(armed, table, 1);
      },
      [&](std::uint64_t round) {
        if (armed_chunks_after_store<NoFence>(table) == 0 || !take_single_shot(armed)) return false;
        EXPECT_EQ(data, round);
        return true;
      });
}

/// A word of an event queue that orders nothing: a race, unless the levels above it do.
struct PlainWord {
  std::uint64_t fetch_or(std::uint64_t bits, std::memory_order) {
    return std::exchange(value, value | bits);
  }
  std::uint64_t fetch_and(std::uint64_t bits, std::memory_order) {
    return std::exchange(value, value & bits);
  }
  std::uint64_t exchange(std::uint64_t bits, std::memory_order) {
    return std::exchange(value, bits);
  }
  std::uint64_t load(std::memory_order) const { return value; }
  std::uint64_t value = 0;
};

/// One word of each level.
template <typename Mid>
struct SmallQueue {
  template <typename Word>
  struct Level {
    Word& operator[](std::uint32_t) { return word; }
    Word word{};
  };
  std::atomic<std::uint64_t> root{0};
  std::atomic<std::uint32_t> sleeping{shm::kAwake};
  Level<Mid> mid;
  Level<PlainWord> leaf;
};

template <typename Mid>
void hand_an_event_over(SmallQueue<Mid>& queue) {
  std::uint32_t word = 0, cursor = 0, base = 0;
  test::hand_over([&] { EXPECT_FALSE(post_event_bit(queue, 3, &word)); },
                  [&] { EXPECT_EQ(take_events(queue, &cursor, &base), 1u << 3); });
}

TEST(WakeupRace, ALeafComesWithItsMidWord) {
  SmallQueue<std::atomic<std::uint64_t>> queue;
  queue.root = 1;  // and so nothing is stored there
  hand_an_event_over(queue);
}

TEST(WakeupRace, AMidWordComesWithTheRoot) {
  SmallQueue<PlainWord> queue;
  hand_an_event_over(queue);
}

TEST(WakeupRace, WhatIsPostedIsSeenByOneThatIsAboutToSleep) {
  auto queue = std::make_unique<shm::EventQueueMemory>();
  std::uint64_t data = 0;
  test::hand_over(
      [&] {
        std::uint32_t word = 0;
        data = 7;
        EXPECT_FALSE(post_event_bit(*queue, 3, &word));
      },
      [&] {
        std::uint32_t word = 0;
        EXPECT_FALSE(prepare_sleep(*queue, shm::kSleepsOnFutex, &word));
        EXPECT_EQ(data, 7u);
      });
}

// A producer that finds "awake" leaves it to the ring before that.
TEST(WakeupRace, ARingComesBeforeTheWordThatItsSleepIsOver) {
  auto queue = std::make_unique<shm::EventQueueMemory>();
  queue->sleeping = shm::asleep_after(shm::kAwake, shm::kSleepsOnFd);
  std::uint64_t rung = 0;
  test::hand_over(
      [&] {
        std::uint32_t word = 0;
        EXPECT_TRUE(begin_wake(*queue, &word));
        rung = 1;
        end_wake(*queue, word);
      },
      [&] {
        std::uint32_t word = 0;
        EXPECT_FALSE(begin_wake(*queue, &word));
        EXPECT_EQ(rung, 1u);
      });
}

}  // namespace
}  // namespace clan::nic
