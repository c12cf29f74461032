#include "link/udp/transport/ring_queue.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "support/pattern.h"
#include "udp/allocations.h"

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
    switch (r.below(4)) {
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
      default:
        if (expected.empty()) break;
        ring.pop_back();
        expected.pop_back();
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
  for (std::size_t i = 0; i + 1 < 8; ++i) {  // the ring begins with 8 slots
    ring.push_back();
    ring.pop_front();
  }
  EXPECT_GE(ring.push_back().capacity(), 1000u) << "the slot came round with its memory";
}

TEST(RingQueue, GivesItsMemoryBackWhenItIsToldTo) {
  std::int64_t used = 0;
  const test::Charge charge(&used);
  RingQueue<int> ring;
  for (int i = 0; i < 100; ++i) ring.push_back(i);
  for (int i = 0; i < 100; ++i) ring.pop_front();
  ring.release_memory();
  EXPECT_EQ(used, 0);
  ring.push_back(1);
  EXPECT_EQ(ring.front(), 1);
}

}  // namespace
}  // namespace clan::udp
