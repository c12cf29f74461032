#include "state/doorbell_count.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>

namespace clan::preload {
namespace {

using socket_face::kDoorbellsClosed;

TEST(DoorbellCount, IsWhatHasBeenCountedAndNotTakenBack) {
  std::atomic<std::uint64_t> word{0};
  EXPECT_TRUE(count_doorbell(word));
  EXPECT_TRUE(count_doorbell(word));
  uncount_doorbell(word);
  EXPECT_EQ(word.load(), 1u);
}

TEST(DoorbellCount, ThatIsClosedStaysWhatItIs) {
  std::atomic<std::uint64_t> word{3};
  close_doorbells(word, 2);
  EXPECT_EQ(word.load(), kDoorbellsClosed | 2);
  EXPECT_FALSE(count_doorbell(word));
  uncount_doorbell(word);
  EXPECT_EQ(word.load(), kDoorbellsClosed | 2);
}

TEST(DoorbellCount, IsNotRaisedByWhatElseTheKernelHasSent) {
  std::atomic<std::uint64_t> word{3};
  close_doorbells(word, 7);
  EXPECT_EQ(word.load(), kDoorbellsClosed | 3);
}

}  // namespace
}  // namespace clan::preload
