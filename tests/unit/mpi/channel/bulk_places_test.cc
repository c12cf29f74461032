#include "plugins/mpi/channel/bulk_places.h"

#include <gtest/gtest.h>

namespace clan::mpi {
namespace {

constexpr std::uint32_t kArea = 64 * 1024;

/// Places and sends one record in slot `produced`, which is taken at once. False: no room.
bool send(BulkPlaces& places, std::uint64_t bytes, std::uint64_t produced, bool again) {
  if (!places.place(bytes, kArea, produced, produced, again)) return false;
  EXPECT_LE(places.reserved_offset(kArea) + bytes, kArea);
  places.use();
  places.record_ends(produced);
  return true;
}

TEST(BulkPlaces, HaveRoomForALongRecordWhereverTheTailStandsOnceAllHasBeenTaken) {
  for (const bool again : {false, true}) {
    for (std::uint64_t tail = 0; tail < kArea; tail += kCacheLine) {
      for (const std::uint32_t bytes : {kArea / 2, kArea / 2 + 64, kArea}) {
        BulkPlaces places;
        std::uint64_t produced = 0;
        if (tail > 0) {
          ASSERT_TRUE(send(places, tail, produced++, again));
        }
        EXPECT_TRUE(send(places, bytes, produced, again)) << tail << ' ' << bytes << ' ' << again;
      }
    }
  }
}

TEST(BulkPlaces, DoNotUseLinesOfARecordThatHasNotBeenTaken) {
  BulkPlaces places;
  ASSERT_TRUE(places.place(kArea / 2, kArea, 0, 0, true));
  places.use();
  places.record_ends(0);
  ASSERT_TRUE(places.place(kArea / 2, kArea, 0, 1, true));
  EXPECT_EQ(places.reserved_offset(kArea), kArea / 2);
  places.use();
  places.record_ends(1);
  EXPECT_FALSE(places.place(kCacheLine, kArea, 0, 2, true)) << "two records fill the area";
  EXPECT_TRUE(places.place(kCacheLine, kArea, 1, 2, true)) << "the first has been taken";
  EXPECT_EQ(places.reserved_offset(kArea), 0u);
}

TEST(BulkPlaces, BeginAgainWithTheLinesUsedLastOrGoOn) {
  for (const bool again : {false, true}) {
    BulkPlaces places;
    ASSERT_TRUE(send(places, kCacheLine, 0, again));
    ASSERT_TRUE(places.place(kCacheLine, kArea, 1, 1, again));
    EXPECT_EQ(places.reserved_offset(kArea), again ? 0u : kCacheLine);
  }
}

}  // namespace
}  // namespace clan::mpi
