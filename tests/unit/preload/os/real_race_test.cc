// The table of the C library's calls is filled once: ThreadSanitizer sees whether other threads may
// use it.
#include <gtest/gtest.h>

#include "os/real.h"
#include "support/hand_over.h"

namespace clan::preload {
namespace {

TEST(Real, OneThatAsksSecondSeesTheTableOfTheFirst) {
  decltype(real().close) first = nullptr, second = nullptr;
  test::hand_over([&] { first = real().close; }, [&] { second = real().close; });
  EXPECT_NE(first, nullptr);
  EXPECT_EQ(first, second);
}

}  // namespace
}  // namespace clan::preload
