#include "link/udp/range_set.h"

#include <gtest/gtest.h>

#include <set>

#include "link/udp/received_numbers.h"
#include "support/pattern.h"

namespace clan::udp {
namespace {

using test::Random;

TEST(RangeSet, DoesWhatASetOfNumbersDoes) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Random r(seed);
    RangeSet ranges;
    std::set<std::uint64_t> numbers;
    for (int i = 0; i < 200; ++i) {
      const std::uint64_t begin = r.below(300), end = begin + r.below(40);
      if (r.below(3) != 0) {
        ranges.add(begin, end);
        for (std::uint64_t n = begin; n < end; ++n) numbers.insert(n);
      } else {
        ranges.remove(begin, end);
        numbers.erase(numbers.lower_bound(begin), numbers.lower_bound(end));
      }
      std::set<std::uint64_t> got, missing;
      for (std::size_t k = 0; k < ranges.size(); ++k) {
        ASSERT_LT(ranges[k].begin, ranges[k].end);
        if (k > 0) {
          ASSERT_GT(ranges[k].begin, ranges[k - 1].end) << "adjacent ranges are one";
        }
        for (std::uint64_t n = ranges[k].begin; n < ranges[k].end; ++n) got.insert(n);
      }
      ASSERT_EQ(got, numbers) << "seed " << seed;
      const std::uint64_t from = r.below(300), to = from + r.below(100);
      ranges.for_each_missing(from, to, [&](std::uint64_t b, std::uint64_t e) {
        ASSERT_LT(b, e);
        for (; b < e; ++b) ASSERT_TRUE(missing.insert(b).second);
      });
      for (std::uint64_t n = from; n < to; ++n) ASSERT_NE(numbers.contains(n), missing.contains(n));
      ASSERT_EQ(ranges.contains(from), numbers.contains(from));
    }
  }
}

TEST(ReceivedNumbers, TakeEachNumberOnce) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random r(seed);
    ReceivedNumbers received;
    std::set<std::uint64_t> taken;
    std::uint64_t newest = 1;
    for (int i = 0; i < 5000; ++i) {
      newest += r.below(3);
      const std::uint64_t n = newest - std::min(newest - 1, r.below(10) == 0 ? r.below(500) : r.below(3));
      if (received.seen(n)) continue;
      received.add(n);
      ASSERT_TRUE(taken.insert(n).second) << n << " was taken twice";
    }
    EXPECT_LE(received.memory_bytes(), 4096u);
  }
}

TEST(ReceivedNumbers, AnAckSaysWhatHasCome) {
  Random r(3);
  ReceivedNumbers received;
  std::set<std::uint64_t> came;
  for (int i = 0; i < 40; ++i) {
    const std::uint64_t n = 1 + r.below(60);
    if (received.seen(n)) continue;
    received.add(n);
    came.insert(n);
    std::byte bytes[400];
    Writer w(bytes);
    ASSERT_TRUE(received.write_ack(w, 7, 99));
    Reader in{std::span(bytes).first(w.size())};
    Frame f;
    ASSERT_TRUE(read_frame(in, &f));
    ASSERT_EQ(in.left(), 0u);
    EXPECT_EQ(f.delay_us, 7u);
    EXPECT_EQ(f.packet_window, 99u);
    std::set<std::uint64_t> said;
    for (std::uint32_t k = 0; k < f.ranges; ++k) {
      for (std::uint64_t m = f.range[k].first; m <= f.range[k].last; ++m) said.insert(m);
    }
    ASSERT_EQ(said, came);
  }
}

}  // namespace
}  // namespace clan::udp
