#include "shm/ring.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <random>
#include <thread>
#include <vector>

#include "support/backoff.h"

namespace clan::shm {
namespace {

struct alignas(kCacheLine) Line {
  std::byte bytes[kCacheLine]{};
};

// A ring in private memory and both ends of it.
struct Ring {
  explicit Ring(std::uint64_t lines) : ring{lines}, memory(lines) {}

  std::byte* bytes() { return memory.data()->bytes; }
  int reserve(std::uint64_t payload) {
    if (ring.follow(producer.tail, producer.bound, payload, &slot)) return 1;
    return ring.reserve(
        producer, payload, ring.lines, [&] { return credit; }, &slot);
  }
  void commit(const std::vector<std::byte>& payload, std::uint8_t type = 1) {
    std::copy(payload.begin(), payload.end(), ring.payload_at(bytes(), slot));
    ring.publish(bytes(), slot,
                 RingHead::make(static_cast<std::uint32_t>(payload.size()), type, 7));
    ring.advance(producer, slot, ring.lines);
  }
  int peek() { return ring.peek(consumer, bytes(), &record); }
  void consume() { consumer.head += record.lines; }
  void publish() { consumer.published = credit = consumer.head; }

  RecordRing ring;
  std::vector<Line> memory;
  RingProducer producer;
  RingConsumer consumer;
  RingSlot slot;
  RingRecord record;
  std::uint64_t credit = 0;
};

std::vector<std::byte> bytes_of(std::size_t n, std::uint8_t fill = 0x5a) {
  return std::vector<std::byte>(n, std::byte{fill});
}

TEST(RecordRing, CountsTheLinesOfARecordWithItsHead) {
  EXPECT_EQ(lines_for(0), 1u);
  EXPECT_EQ(lines_for(56), 1u);
  EXPECT_EQ(lines_for(57), 2u);
  EXPECT_EQ(lines_for(120), 2u);
  EXPECT_EQ(lines_for(121), 3u);
  EXPECT_EQ(lines_for(0xffffffff), (0xffffffffull + 8 + 63) / 64);
}

TEST(RecordRing, LetsARecordFillAQuarterOfTheRing) {
  for (std::uint64_t lines = kMinRingLines; lines <= 65536; lines *= 2) {
    RecordRing g{lines};
    EXPECT_EQ(lines_for(g.max_payload()), lines / 4);
    EXPECT_EQ(g.index(3 * lines + 5), 5u);
  }
}

TEST(RingHead, CarriesLengthTypeAndProcessor) {
  RingHead h = RingHead::make(0xfedcba98, 0x12, 0xabcd);
  EXPECT_TRUE(h.valid());
  EXPECT_EQ(h.length(), 0xfedcba98u);
  EXPECT_EQ(h.type(), 0x12);
  EXPECT_EQ(h.cpu(), 0xabcd);
  EXPECT_FALSE(RingHead{}.valid());
  EXPECT_FALSE(RingHead{0x1234}.valid());
}

TEST(Ring, IsEmptyWhenFresh) {
  Ring r(16);
  EXPECT_EQ(r.peek(), 0);
}

TEST(Ring, HandsOverARecordInPlace) {
  Ring r(16);
  ASSERT_EQ(r.reserve(100), 1);
  r.commit(bytes_of(100), 9);
  ASSERT_EQ(r.peek(), 1);
  EXPECT_EQ(r.record.head.length(), 100u);
  EXPECT_EQ(r.record.head.type(), 9);
  EXPECT_EQ(r.record.head.cpu(), 7);
  EXPECT_EQ(r.record.lines, 2u);
  EXPECT_EQ(r.record.payload, r.bytes() + 8);
  r.consume();
  EXPECT_EQ(r.peek(), 0);
}

TEST(Ring, IsFullBeforeTheTerminatorWouldHitUnreadLines) {
  Ring r(16);
  for (int i = 0; i < 15; ++i) {
    ASSERT_EQ(r.reserve(0), 1) << i;
    r.commit({});
  }
  EXPECT_EQ(r.reserve(0), 0);  // one line is free: the terminator's
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(r.peek(), 1);
    r.consume();
  }
  EXPECT_EQ(r.reserve(0), 0);  // not reported yet
  r.publish();
  EXPECT_EQ(r.reserve(0), 1);
}

TEST(Ring, SkipsTheEndWhereARecordWouldWrap) {
  Ring r(16);
  for (int i = 0; i < 14; ++i) {
    ASSERT_EQ(r.reserve(0), 1);
    r.commit({});
    ASSERT_EQ(r.peek(), 1);
    r.consume();
  }
  r.publish();
  ASSERT_EQ(r.reserve(r.ring.max_payload()), 1);  // 4 lines at index 14
  EXPECT_EQ(r.slot.hop, kRingSkip);
  EXPECT_EQ(r.slot.from, 14u);
  EXPECT_EQ(r.slot.position, 16u);
  r.commit(bytes_of(r.ring.max_payload()));
  ASSERT_EQ(r.peek(), 1);
  EXPECT_EQ(r.consumer.head, 16u);
  EXPECT_EQ(r.record.payload, r.bytes() + 8);
}

TEST(Ring, KeepsItsLastLineForASkip) {
  Ring r(16);
  r.producer.calm = false;
  auto put = [&](std::uint64_t bytes) {
    ASSERT_EQ(r.reserve(bytes), 1);
    r.commit(bytes_of(bytes));
  };
  auto get = [&](int records) {
    for (int i = 0; i < records; ++i) {
      ASSERT_EQ(r.peek(), 1);
      r.consume();
    }
    r.publish();
  };
  for (int i = 0; i < 11; ++i) put(0);
  get(6);
  put(r.ring.max_payload());
  EXPECT_EQ(r.slot.hop, 0);
  EXPECT_EQ(r.producer.tail, 15u);
  get(6);
  put(0);
  EXPECT_EQ(r.slot.hop, kRingSkip);
  get(1);
  EXPECT_EQ(r.consumer.head, 17u);
}

TEST(Ring, KeepsALightConnectionInItsFirstPage) {
  Ring r(1024);
  std::uint64_t furthest = 0;
  for (int i = 0; i < 5000; ++i) {
    ASSERT_EQ(r.reserve(i % 100), 1);
    furthest = std::max(furthest, r.ring.index(r.slot.position) + r.slot.lines);
    r.commit(bytes_of(i % 100));
    ASSERT_EQ(r.peek(), 1);
    r.consume();
    r.publish();
  }
  EXPECT_LE(furthest, 48u);
}

TEST(Ring, TakesThreeQuartersWhateverWentBefore) {
  for (int before = 0; before < 2000; before += 7) {
    Ring r(1024);
    auto pass = [&](std::uint64_t bytes) {
      EXPECT_EQ(r.reserve(bytes), 1);
      r.commit(bytes_of(bytes));
      EXPECT_EQ(r.peek(), 1);
      r.consume();
      r.publish();
    };
    for (int i = 0; i < before; ++i) pass(i % 100);
    std::uint64_t lines = 0;
    for (; r.reserve(1000) == 1; lines += lines_for(1000)) r.commit(bytes_of(1000));
    EXPECT_GE(lines, 768u) << "after " << before;
  }
}

TEST(Ring, JumpsOverWhatIsNotReadOnce) {
  Ring r(256);
  auto put = [&](std::uint64_t bytes) {
    if (r.reserve(bytes) != 1) return false;
    r.commit(bytes_of(bytes));
    return true;
  };
  for (int i = 0; i < 46; ++i) {
    ASSERT_TRUE(put(0));
    ASSERT_EQ(r.peek(), 1);
    r.consume();
  }
  r.publish();
  int records = 0, jumps = 0;
  for (; put(0); ++records) jumps += r.slot.hop == kRingJump;
  EXPECT_EQ(jumps, 1);
  EXPECT_GE(records, 240);
  for (int i = 0; i < records; ++i) {
    ASSERT_EQ(r.peek(), 1) << i;
    r.consume();
  }
  EXPECT_EQ(r.peek(), 0);
  r.publish();
  EXPECT_TRUE(put(r.ring.max_payload()));
}

TEST(Ring, CallsACreditThatMovesBackwardsBroken) {
  Ring r(16);
  for (int i = 0; i < 15; ++i) {
    ASSERT_EQ(r.reserve(0), 1);
    r.commit({});
  }
  r.credit = 8;
  ASSERT_EQ(r.reserve(r.ring.max_payload() / 4), 1);
  r.commit(bytes_of(10));
  r.credit = 7;
  EXPECT_EQ(r.reserve(r.ring.max_payload() * 2), -1);
}

TEST(Ring, CallsACreditBeyondWhatWasProducedBroken) {
  for (std::uint64_t credit : {std::uint64_t{16}, ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    Ring r(16);
    for (int i = 0; i < 15; ++i) {
      ASSERT_EQ(r.reserve(0), 1);
      r.commit({});
    }
    r.credit = credit;
    EXPECT_EQ(r.reserve(0), -1) << credit;
  }
}

// Random operations against a queue of byte vectors. Payloads look like heads, so that stale lines
// would be taken for records if a terminator were ever missing.
TEST(Ring, BehavesAsAQueueOfRecordsUnderRandomOperations) {
  for (std::uint64_t lines : {16u, 32u, 128u, 1024u}) {
    std::mt19937_64 random(lines);
    Ring r(lines);
    struct Expected {
      std::vector<std::byte> payload;
      std::uint8_t type;
    };
    std::deque<Expected> queue;
    std::uint64_t refused = 0, hops[2] = {}, records = 0;
    std::vector<bool> taken(lines);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> read;  // and not yet given back
    const auto publish = [&] {
      for (const auto& [at, k] : read) std::fill_n(taken.begin() + static_cast<long>(at), k, false);
      read.clear();
      r.publish();
    };
    for (int step = 0; step < 60000; ++step) {
      // Phases in which one side is faster than the other.
      const bool producing = random() % 100 < (step / 2000 % 2 == 0 ? 65u : 35u);
      if (producing) {
        const std::uint64_t most = r.ring.max_payload();
        const std::uint64_t n = random() % 3 == 0 ? random() % (most + 1) : random() % 57;
        r.producer.calm = random() % 2 == 0;
        const int rc = r.reserve(n);
        if (rc == 0) {
          ASSERT_NE(r.producer.tail, r.credit) << "an empty ring has room";
          ++refused;
          continue;
        }
        ASSERT_EQ(rc, 1);
        hops[0] += r.slot.hop == kRingSkip;
        hops[1] += r.slot.hop == kRingJump;
        // Never over lines that the consumer has not given back, nor across the end: those of the
        // record and of its terminator, and where it hops.
        const std::uint64_t at = r.ring.index(r.slot.position);
        ASSERT_LT(at + r.slot.lines, lines);
        for (std::uint64_t i = 0; i <= r.slot.lines; ++i) ASSERT_FALSE(taken[at + i]);
        if (r.slot.hop != 0) {
          ASSERT_FALSE(taken[r.ring.index(r.slot.from)]);
        }
        for (std::uint64_t i = 0; i < r.slot.lines; ++i) taken[at + i] = true;
        Expected e{std::vector<std::byte>(n), static_cast<std::uint8_t>(random() % kRingJump)};
        const std::uint64_t fake =
            RingHead::make(static_cast<std::uint32_t>(random() % 64), 3, 1).word;
        for (std::size_t i = 0; i < n; ++i) {
          e.payload[i] = static_cast<std::byte>(fake >> 8 * (i % 8));
        }
        r.commit(e.payload, e.type);
        queue.push_back(std::move(e));
        ++records;
      } else {
        const int rc = r.peek();
        ASSERT_EQ(rc, queue.empty() ? 0 : 1);
        if (rc == 0) {
          publish();
          continue;
        }
        ASSERT_EQ(r.record.head.length(), queue.front().payload.size());
        ASSERT_EQ(r.record.head.type(), queue.front().type);
        ASSERT_TRUE(std::equal(queue.front().payload.begin(), queue.front().payload.end(),
                               r.record.payload));
        queue.pop_front();
        read.emplace_back(r.ring.index(r.consumer.head), r.record.lines);
        r.consume();
        if (r.consumer.head - r.consumer.published >= lines / 8) publish();
      }
    }
    EXPECT_GT(records, 1000u);
    EXPECT_GT(refused, 0u);
    EXPECT_GT(hops[0], 0u);
    if (lines > 64) {
      EXPECT_GT(hops[1], 0u);
    }
  }
}

// A ring between two pages that may not be touched.
class GuardedRing {
 public:
  static constexpr std::uint64_t kLines = 64;
  GuardedRing() {
    void* p = ::mmap(nullptr, 3 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    base_ = static_cast<std::byte*>(p);
    ok_ = p != MAP_FAILED && ::mprotect(base_ + 4096, 4096, PROT_READ | PROT_WRITE) == 0;
  }
  ~GuardedRing() { ::munmap(base_, 3 * 4096); }
  GuardedRing(const GuardedRing&) = delete;
  GuardedRing& operator=(const GuardedRing&) = delete;
  bool ok() const { return ok_; }
  std::byte* bytes() const { return base_ + 4096; }

 private:
  std::byte* base_;
  bool ok_;
};

TEST(Ring, NeverReadsOutsideWhateverItsProducerWrites) {
  GuardedRing ring;
  ASSERT_TRUE(ring.ok());
  const RecordRing g{GuardedRing::kLines};
  std::mt19937_64 random(1);
  std::uint64_t seen[3] = {};
  unsigned sum = 0;
  for (int round = 0; round < 20000; ++round) {
    for (std::uint64_t i = 0; i < g.lines; ++i) {
      std::uint64_t word = random();
      switch (random() % 5) {
        case 0: word = RingHead::make(static_cast<std::uint32_t>(random()), 1, 0).word; break;
        case 1:
          word = RingHead::make(static_cast<std::uint32_t>(random() % 4096), 1, 0).word;
          break;
        case 2: word = RingHead::make(0, random() % 2 == 0 ? kRingSkip : 2, 0).word; break;
        case 3: word = RingHead::make(random() % 80, kRingJump, 0).word; break;
        default: break;
      }
      head_at(ring.bytes(), i).store(random() % 16 == 0 ? 0 : word, std::memory_order_relaxed);
    }
    RingConsumer c;
    c.head = c.published = random();
    for (int records = 0; records < 100; ++records) {
      RingRecord record;
      const int rc = g.peek(c, ring.bytes(), &record);
      ++seen[rc + 1];
      if (rc != 1) break;
      ASSERT_LE(record.head.length(), g.max_payload());
      ASSERT_GE(record.payload, ring.bytes());
      ASSERT_LE(record.payload + record.head.length(), ring.bytes() + 4096);
      for (std::uint32_t i = 0; i < record.head.length(); ++i) {
        sum += static_cast<unsigned>(record.payload[i]);
      }
      c.head += record.lines;
    }
  }
  EXPECT_GT(seen[0], 0u);
  EXPECT_GT(seen[1], 0u);
  EXPECT_GT(seen[2], 0u);
  EXPECT_NE(sum, 0u);
}

TEST(Ring, CallsASkipAtItsFirstLineBroken) {
  Ring r(16);
  head_at(r.bytes(), 0).store(RingHead::make(0, kRingSkip, 0).word, std::memory_order_relaxed);
  EXPECT_EQ(r.peek(), -1);
}

// Two threads over one mapping; ThreadSanitizer sees a missing release or acquire here.
void race(std::uint64_t lines, std::uint32_t records) {
  const RecordRing g{lines};
  std::vector<Line> memory(lines);
  std::byte* bytes = memory.data()->bytes;
  std::atomic<std::uint64_t> credit{0};
  std::atomic<bool> failed{false};
  auto length_of = [&](std::uint32_t n) {
    std::uint64_t x = (n + 1) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    return x % 5 == 0 ? (x >> 8) % (g.max_payload() + 1) : (x >> 8) % 120;
  };
  auto byte_of = [](std::uint32_t n, std::uint64_t i) {
    return static_cast<std::byte>(n * 31 + i);
  };

  std::thread producer([&] {
    RingProducer p;
    std::mt19937 random(5);
    test::Backoff backoff;
    for (std::uint32_t n = 0; n < records && !failed; ++n) {
      const std::uint64_t length = length_of(n);
      RingSlot slot;
      for (;;) {
        // acquire and release: the consumer has finished reading the lines before it
        const int rc = g.reserve(
            p, length, lines, [&] { return credit.load(std::memory_order_acquire); }, &slot);
        if (rc == 1) break;
        if (rc < 0) failed = true;
        if (failed) return;
        backoff.wait();
      }
      backoff.reset();
      std::byte* out = g.payload_at(bytes, slot);
      for (std::uint64_t i = 0; i < length; ++i) out[i] = byte_of(n, i);
      g.publish(bytes, slot, RingHead::make(static_cast<std::uint32_t>(length), 1, 0));
      g.advance(p, slot, lines);
      if (random() % 64 == 0) sched_yield();
    }
  });

  RingConsumer c;
  std::uint32_t n = 0;
  test::Backoff backoff;
  for (std::uint64_t idle = 0; n < records && !failed;) {
    RingRecord record;
    const int rc = g.peek(c, bytes, &record);
    if (rc == 0) {
      if (c.head != c.published) {
        c.published = c.head;
        credit.store(c.head, std::memory_order_release);
      }
      backoff.wait();
      if (++idle > 1'000'000) failed = true;
      continue;
    }
    backoff.reset();
    idle = 0;
    bool same = rc == 1 && record.head.length() == length_of(n);
    for (std::uint64_t i = 0; same && i < record.head.length(); ++i) {
      same = record.payload[i] == byte_of(n, i);
    }
    if (!same) failed = true;
    c.head += record.lines;
    if (c.head - c.published >= lines / 8) {
      c.published = c.head;
      credit.store(c.head, std::memory_order_release);
    }
    ++n;
  }
  producer.join();
  EXPECT_FALSE(failed) << "at record " << n;
  EXPECT_EQ(n, records);
}

TEST(RingRace, DeliversEveryRecordThroughASmallRing) { race(16, 100000); }
TEST(RingRace, DeliversEveryRecordThroughALargeRing) { race(1024, 50000); }

}  // namespace
}  // namespace clan::shm
