#include "stream/remote_sleep.h"

#include <gtest/gtest.h>

namespace clan::preload {
namespace {

TEST(RemoteSleep, ForASocketOfThisHostThereIsNothingToWatch) {
  const PacketSleep sleep(false, PacketSleep::May::kFetch);
  EXPECT_FALSE(sleep.has_come());
  EXPECT_FALSE(sleep.watches());
}

TEST(RemoteSleep, WithoutTheComponentThereIsNothingToWatch) {
  PacketSleep sleep(true, PacketSleep::May::kFetch);
  EXPECT_FALSE(sleep.has_come());
  EXPECT_FALSE(sleep.watches());
  EXPECT_FALSE(sleep.fetch());
}

}  // namespace
}  // namespace clan::preload
