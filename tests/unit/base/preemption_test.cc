// PreemptionWatch: whether the thread has been off its processor.
#include "clan/detail/preemption.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace clan {
namespace {

TEST(PreemptionWatch, SeesThatTheThreadHasBeenOffItsProcessor) {
  PreemptionWatch watch;
  ::usleep(1000);
  EXPECT_TRUE(watch.happened());
}

TEST(PreemptionWatch, SeesNothingWhereNothingHappened) {
  int calm = 0;
  for (int k = 0; k < 100; ++k) {
    PreemptionWatch watch;
    calm += !watch.happened();
  }
#if defined(CLAN_HAS_RSEQ)
  EXPECT_GT(calm, __rseq_size != 0 ? 50 : -1);
#else
  EXPECT_EQ(calm, 0);
#endif
}

}  // namespace
}  // namespace clan
