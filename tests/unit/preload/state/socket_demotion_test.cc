// What the rest of a Socket's way back may rely on.
#include "state/socket_demotion.h"

#include <gtest/gtest.h>

#include "support/hand_over.h"

namespace clan::preload {
namespace {

// As demote/demote_on_request.cc stores it.
TEST(SocketDemotion, OneThatReadsTheKernelFindsItsLowWaterMarkSet) {
  Demotion demotion;
  int low_water = 0;
  test::hand_over([&] { low_water = 9, demotion.back_in.store(true, std::memory_order_release); },
                  [&] {
                    EXPECT_TRUE(demotion.reads_kernel());
                    EXPECT_EQ(low_water, 9);
                  });
}

// As demote/resend.cc stores it.
TEST(SocketDemotion, OneThatMaySendAgainSeesThatAllHasBeenSent) {
  Demotion demotion;
  int sent = 0;
  demotion.resending.store(true, std::memory_order_relaxed);
  test::hand_over([&] { sent = 9, demotion.resending.store(false, std::memory_order_release); },
                  [&] {
                    EXPECT_FALSE(demotion.is_resending());
                    EXPECT_EQ(sent, 9);
                  });
}

}  // namespace
}  // namespace clan::preload
