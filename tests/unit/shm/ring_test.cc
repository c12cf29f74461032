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
  explicit Ring(std::uint64_t lines) : geometry{lines}, memory(lines) {}

  std::byte* bytes() { return memory.data()->bytes; }
  int reserve(std::uint64_t payload) {
    return ring_reserve(
        geometry, producer, payload, [&] { return credit; }, &slot);
  }
  void commit(const std::vector<std::byte>& payload, std::uint8_t type = 1) {
    std::copy(payload.begin(), payload.end(), payload_at(geometry, bytes(), slot));
    ring_publish(geometry, bytes(), slot,
                 RingHead::make(static_cast<std::uint32_t>(payload.size()), type, 7));
    ring_advance(geometry, producer, slot);
  }
  int peek() { return ring_peek(geometry, consumer, bytes(), &record); }
  void consume() { consumer.head += record.lines; }
  void publish() { consumer.published = credit = consumer.head; }

  RingGeometry geometry;
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

TEST(RingGeometry, CountsTheLinesOfARecordWithItsHead) {
  EXPECT_EQ(lines_for(0), 1u);
  EXPECT_EQ(lines_for(56), 1u);
  EXPECT_EQ(lines_for(57), 2u);
  EXPECT_EQ(lines_for(120), 2u);
  EXPECT_EQ(lines_for(121), 3u);
  EXPECT_EQ(lines_for(0xffffffff), (0xffffffffull + 8 + 63) / 64);
}

TEST(RingGeometry, LetsARecordFillAQuarterOfTheRing) {
  for (std::uint64_t lines = kMinRingLines; lines <= 65536; lines *= 2) {
    RingGeometry g{lines};
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
  ASSERT_EQ(r.peek(), 1);
  r.consume();
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
  ASSERT_EQ(r.reserve(r.geometry.max_payload()), 1);  // 4 lines at index 14
  EXPECT_TRUE(r.slot.skips);
  EXPECT_EQ(r.slot.skip_at, 14u);
  EXPECT_EQ(r.slot.position, 16u);
  r.commit(bytes_of(r.geometry.max_payload()));
  ASSERT_EQ(r.peek(), 1);
  EXPECT_EQ(r.consumer.head, 16u);
  EXPECT_EQ(r.record.payload, r.bytes() + 8);
}

TEST(Ring, TakesARecordThatEndsWithTheRing) {
  Ring r(16);
  for (int i = 0; i < 12; ++i) {
    ASSERT_EQ(r.reserve(0), 1);
    r.commit({});
    ASSERT_EQ(r.peek(), 1);
    r.consume();
  }
  r.publish();
  ASSERT_EQ(r.reserve(r.geometry.max_payload()), 1);
  EXPECT_FALSE(r.slot.skips);
  r.commit(bytes_of(r.geometry.max_payload()));
  ASSERT_EQ(r.peek(), 1);
  r.consume();
  EXPECT_EQ(r.consumer.head, 16u);
  EXPECT_EQ(r.peek(), 0);
}

TEST(Ring, KeepsALightConnectionToAQuarter) {
  Ring r(1024);
  std::uint64_t furthest = 0;
  for (int i = 0; i < 5000; ++i) {
    ASSERT_EQ(r.reserve(i % 100), 1);
    furthest = std::max(furthest, r.geometry.index(r.slot.position) + r.slot.lines);
    r.commit(bytes_of(i % 100));
    ASSERT_EQ(r.peek(), 1);
    r.consume();
    r.publish();
  }
  EXPECT_LE(furthest, 256u + 2);
}

TEST(Ring, TakesAQuarterWhateverWentBefore) {
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
    EXPECT_GE(lines, 256u - 2 * lines_for(1000)) << "after " << before;
  }
}

TEST(Ring, DoesNotWaitForARewind) {
  Ring r(256);
  // Empty and far enough to rewind; the second time that would need more lines than the ring has.
  r.producer.tail = r.consumer.head = r.credit = r.producer.consumed = 192;
  r.producer.next_rewind = 64;
  head_at(r.bytes(), 192).store(0, std::memory_order_relaxed);
  ASSERT_EQ(r.reserve(r.geometry.max_payload()), 1);
  EXPECT_TRUE(r.slot.skips);  // 64 to skip, 64 of record, 1
  r.producer.tail = r.credit = r.producer.consumed = r.consumer.head = 64;
  r.producer.next_rewind = 64;
  ASSERT_EQ(r.reserve(r.geometry.max_payload()), 1);
  EXPECT_FALSE(r.slot.skips);  // 192 to skip, 64 of record, 1
  EXPECT_EQ(r.slot.position, 64u);
}

TEST(Ring, CallsACreditThatMovesBackwardsBroken) {
  Ring r(16);
  for (int i = 0; i < 15; ++i) {
    ASSERT_EQ(r.reserve(0), 1);
    r.commit({});
  }
  r.credit = 8;
  ASSERT_EQ(r.reserve(r.geometry.max_payload() / 4), 1);
  r.commit(bytes_of(10));
  r.credit = 7;
  EXPECT_EQ(r.reserve(r.geometry.max_payload() * 2), -1);
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
    std::uint64_t refused = 0, skips = 0, rewinds = 0, records = 0;
    for (int step = 0; step < 60000; ++step) {
      // Phases in which one side is faster than the other.
      const bool producing = random() % 100 < (step / 2000 % 2 == 0 ? 65u : 35u);
      if (producing) {
        const std::uint64_t most = r.geometry.max_payload();
        const std::uint64_t n = random() % 3 == 0 ? random() % (most + 1) : random() % 57;
        const std::uint64_t k = lines_for(n);
        const std::uint64_t index = r.geometry.index(r.producer.tail);
        const bool must_skip = index + k > lines;
        const std::uint64_t needed = (must_skip ? lines - index : 0) + k + 1;
        const bool fits = lines - (r.producer.tail - r.credit) >= needed;
        const int rc = r.reserve(n);
        ASSERT_EQ(rc, fits ? 1 : 0);
        if (rc == 0) {
          ++refused;
          continue;
        }
        skips += r.slot.skips;
        rewinds += r.slot.skips && !must_skip;
        // Never over lines that the consumer has not given back, nor across the end.
        ASSERT_LE(r.slot.position + k + 1 - r.credit, lines);
        ASSERT_LE(r.geometry.index(r.slot.position) + k, lines);
        Expected e{std::vector<std::byte>(n), static_cast<std::uint8_t>(random() % 0xff)};
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
          r.publish();
          continue;
        }
        ASSERT_EQ(r.record.head.length(), queue.front().payload.size());
        ASSERT_EQ(r.record.head.type(), queue.front().type);
        ASSERT_TRUE(std::equal(queue.front().payload.begin(), queue.front().payload.end(),
                               r.record.payload));
        queue.pop_front();
        r.consume();
        if (ring_should_publish(r.geometry, r.consumer)) r.publish();
      }
    }
    EXPECT_GT(records, 1000u);
    EXPECT_GT(refused, 0u);
    EXPECT_GT(skips, 0u);
    if (lines > 64) {
      EXPECT_GT(rewinds, 0u);
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
  RingGeometry g{GuardedRing::kLines};
  std::mt19937_64 random(1);
  std::uint64_t seen[3] = {};
  unsigned sum = 0;
  for (int round = 0; round < 20000; ++round) {
    for (std::uint64_t i = 0; i < g.lines; ++i) {
      std::uint64_t word = random();
      switch (random() % 4) {
        case 0: word = RingHead::make(static_cast<std::uint32_t>(random()), 1, 0).word; break;
        case 1:
          word = RingHead::make(static_cast<std::uint32_t>(random() % 4096), 1, 0).word;
          break;
        case 2: word = RingHead::make(0, random() % 2 == 0 ? kRingSkip : 2, 0).word; break;
        default: break;
      }
      head_at(ring.bytes(), i).store(random() % 16 == 0 ? 0 : word, std::memory_order_relaxed);
    }
    RingConsumer c;
    c.head = c.published = random();
    for (int records = 0; records < 100; ++records) {
      RingRecord record;
      const int rc = ring_peek(g, c, ring.bytes(), &record);
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
  RingGeometry g{lines};
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
        const int rc = ring_reserve(
            g, p, length, [&] { return credit.load(std::memory_order_acquire); }, &slot);
        if (rc == 1) break;
        if (rc < 0) failed = true;
        if (failed) return;
        backoff.wait();
      }
      backoff.reset();
      std::byte* out = payload_at(g, bytes, slot);
      for (std::uint64_t i = 0; i < length; ++i) out[i] = byte_of(n, i);
      ring_publish(g, bytes, slot, RingHead::make(static_cast<std::uint32_t>(length), 1, 0));
      ring_advance(g, p, slot);
      if (random() % 64 == 0) sched_yield();
    }
  });

  RingConsumer c;
  std::uint32_t n = 0;
  test::Backoff backoff;
  for (std::uint64_t idle = 0; n < records && !failed;) {
    RingRecord record;
    const int rc = ring_peek(g, c, bytes, &record);
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
    if (ring_should_publish(g, c)) {
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
