#include "link/udp/transport/sent_log.h"

#include <gtest/gtest.h>

#include "udp/allocations.h"

namespace clan::udp {
namespace {

SentItem positions(std::uint8_t channel, std::uint64_t begin, std::uint64_t end) {
  return {SentItem::Kind::kPositions, channel, {begin, end}};
}

TEST(SentLog, NumbersPacketsFromOne) {
  SentLog log;
  EXPECT_EQ(log.next(), 1u);
  EXPECT_FALSE(log.has(0));
  log.add().bytes = 100;
  log.add().bytes = 200;
  EXPECT_EQ(log[1].bytes, 100u);
  EXPECT_EQ(log[2].bytes, 200u);
  log.pop_front();
  EXPECT_FALSE(log.has(1));
  EXPECT_TRUE(log.has(2));
  EXPECT_EQ(log[2].bytes, 200u);
}

TEST(SentLog, MakesOneRangeOfMessagesThatFollowEachOther) {
  SentLog log;
  SentPacket& p = log.add();
  log.add_item(positions(0, 0, 100));
  log.add_item(positions(0, 100, 250));
  EXPECT_EQ(p.items, 1u);
  log.add_item(positions(1, 250, 300));  // another channel
  log.add_item(positions(1, 310, 320));  // not adjacent
  log.add_item({SentItem::Kind::kCredit, 1, {}});
  ASSERT_EQ(p.items, 4u);
  EXPECT_EQ(log.item(p, 0).range, (Range{0, 250}));
  EXPECT_EQ(log.item(p, 2).range, (Range{310, 320}));
  EXPECT_EQ(log.item(p, 3).kind, SentItem::Kind::kCredit);
}

TEST(SentLog, KeepsItemsApartByPacket) {
  SentLog log;
  log.add();
  log.add_item(positions(0, 0, 100));
  log.add();
  log.add_item(positions(0, 100, 200));
  EXPECT_EQ(log[2].items, 1u) << "it follows, but in another packet";
  log.pop_front();
  EXPECT_EQ(log.item(log[2], 0).range, (Range{100, 200}));
}

TEST(SentLog, ForgetsAPacketThatWasNotSent) {
  SentLog log;
  log.add();
  log.drop_last();
  EXPECT_EQ(log.next(), 1u);
  log.add();
  log.add_item(positions(0, 0, 1));
  EXPECT_EQ(log.item(log[1], 0).range, (Range{0, 1}));
}

TEST(SentLog, ReleasesItsMemoryOnlyWhenNothingIsUnderWay) {
  std::int64_t used = 0;
  const test::Charge charge(&used);
  SentLog log;
  log.add();
  log.release_memory();
  EXPECT_TRUE(log.has(1));
  log.pop_front();
  log.release_memory();
  EXPECT_EQ(used, 0);
  EXPECT_EQ(log.next(), 2u) << "numbers are never used again";
}

TEST(SentLog, CountsAProbeOfTheMtuAsNothing) {
  SentPacket p;
  p.bytes = 1200;
  EXPECT_EQ(p.weight(), 1200u);
  p.mtu_probe = true;
  EXPECT_EQ(p.weight(), 0u);
}

TEST(OptimisticAckGuard, IsOneOfTheFirstAndThenOneOfManyButNeverNumberOne) {
  for (const std::uint64_t random : {std::uint64_t{0}, std::uint64_t{77}, ~std::uint64_t{0}}) {
    OptimisticAckGuard s;
    EXPECT_FALSE(s.due(1'000'000)) << "it has not begun";
    s.begin(random);
    std::uint64_t next = 1;
    while (!s.due(next)) ++next;
    EXPECT_GT(next, 1u);
    EXPECT_LE(next, 1 + OptimisticAckGuard::kFirst);
    s.skip(next, random);
    std::uint64_t second = next + 1;
    while (!s.due(second)) ++second;
    EXPECT_LE(second, next + OptimisticAckGuard::kEvery);
  }
}

TEST(OptimisticAckGuard, IsFoundInWhatAPeerAcknowledges) {
  OptimisticAckGuard s;
  s.begin(0);
  EXPECT_FALSE(s.within(1, 1'000'000)) << "none has been skipped";
  s.skip(10, 0);
  EXPECT_TRUE(s.within(10, 10));
  EXPECT_TRUE(s.within(1, 20));
  EXPECT_FALSE(s.within(1, 9));
  EXPECT_FALSE(s.within(11, 20));
}

}  // namespace
}  // namespace clan::udp
