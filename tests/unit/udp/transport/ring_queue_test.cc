#include "link/udp/transport/ring_queue.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "support/pattern.h"

namespace clan::udp {
namespace {

TEST(RingQueue, DoesWhatADequeDoes) {
#if defined(__SANITIZE_ADDRESS__)
  constexpr int kSteps = 5'000;
#else
  constexpr int kSteps = 20'000;
#endif
  test::Random r(7);
  RingQueue<int> ring;
  std::deque<int> expected;
  for (int i = 0; i < kSteps; ++i) {
    switch (r.below(5)) {
      case 0:
      case 1:
        ring.push_back(i);
        expected.push_back(i);
        break;
      case 2:
        if (expected.empty()) break;
        ring.pop_front();
        expected.pop_front();
        break;
      case 3:
        if (expected.empty()) break;
        ring.pop_back();
        expected.pop_back();
        break;
      default: {
        const std::size_t at = r.below(expected.size() + 1);
        ring.insert(at, i);
        expected.insert(expected.begin() + static_cast<std::ptrdiff_t>(at), i);
      }
    }
    ASSERT_EQ(ring.size(), expected.size());
    ASSERT_EQ(ring.empty(), expected.empty());
    for (std::size_t k = 0; k < expected.size(); ++k)
      ASSERT_EQ(ring[k], expected[k]) << "step " << i;
  }
}

TEST(RingQueue, KeepsWhatItsSlotsOwn) {
  RingQueue<std::vector<char>> ring;
  ring.push_back().assign(1000, 'x');
  ring.pop_front();
  for (std::size_t i = 0; i + 1 < ring.capacity(); ++i) {
    ring.push_back();
    ring.pop_front();
  }
  EXPECT_GE(ring.push_back().capacity(), 1000u) << "the slot came round with its memory";
}

TEST(RingQueue, GivesItsMemoryBackWhenItIsToldTo) {
  RingQueue<int> ring;
  for (int i = 0; i < 100; ++i) ring.push_back(i);
  EXPECT_EQ(ring.capacity(), 128u);
  ring.clear();
  ring.release_memory();
  EXPECT_EQ(ring.capacity(), 0u);
  ring.push_back(1);
  EXPECT_EQ(ring.front(), 1);
}

}  // namespace
}  // namespace clan::udp
