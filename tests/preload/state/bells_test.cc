#include "state/bells.h"

#include <gtest/gtest.h>

namespace clan::preload {
namespace {

using namespace socket_face;

TEST(Bells, LoseTheOneThatIsNamedAndNoOther) {
  EXPECT_EQ(bells::without_named(bells::name_of(7) | 3), 2u);
  const std::uint64_t two = 2 + 2 * kSendsDoorbell;
  EXPECT_EQ(bells::without_named(bells::name_of(7) | kRingerSends | two), 1 + kSendsDoorbell);
  EXPECT_EQ(bells::without_named(kBellsClosed | bells::name_of(7) | 1), kBellsClosed);
}

TEST(Bells, ThatTheOtherEndHasWrittenDoNotUnderflow) {
  EXPECT_EQ(bells::without_named(bells::name_of(7)), 0u);
  EXPECT_EQ(bells::without_named(bells::name_of(7) | kRingerSends | 1), 0u);
}

TEST(Bells, HaveRoomForEachOfTheirParts) {
  EXPECT_EQ(bells::kName & (bells::kRingers | kBellsClosed | kRingerSends), 0u);
  EXPECT_EQ(bells::kRingers & (kBellsClosed | kRingerSends), 0u);
  EXPECT_EQ(bells::kSenders & ~bells::kRingers, 0u);
  EXPECT_EQ(bells::name_of(0x7fffffff) >> kRinger, 0x7fffffffu);
}

}  // namespace
}  // namespace clan::preload
