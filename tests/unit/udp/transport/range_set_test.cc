#include "link/udp/transport/range_set.h"

#include <gtest/gtest.h>

#include <set>

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

}  // namespace
}  // namespace clan::udp
