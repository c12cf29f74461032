// What endpoints say to each other: sizes that both sides rely on.
#include "wire/wire.h"

#include <gtest/gtest.h>

#include <cstddef>

#include "system/info.h"

namespace clan::ofi {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kRecordHead = 8;  ///< of a ring's record

TEST(Wire, AHeaderWithAMessageOf32BytesFitsIntoOneLine) {
  EXPECT_LE(kRecordHead + sizeof(WireHeader) + 32, kLine);
}

// Processes of two builds talk to each other: a field that moves needs another kWireVersion.
TEST(Wire, KeepsTheLayoutOfItsVersion) {
  EXPECT_EQ(kWireVersion, 3u);
  EXPECT_EQ(offsetof(WireHeader, op), 0u);
  EXPECT_EQ(offsetof(WireHeader, flags), 1u);
  EXPECT_EQ(offsetof(WireHeader, context), 2u);
  EXPECT_EQ(offsetof(WireHeader, id), 4u);
  EXPECT_EQ(offsetof(WireHeader, tag), 8u);
  EXPECT_EQ(offsetof(WireHeader, data), 16u);
  EXPECT_EQ(sizeof(Hello), 8 + sizeof(sockaddr_in6));
  EXPECT_EQ(sizeof(FarOffer), 16u);
  EXPECT_EQ(sizeof(PlaceReply), 24u);
  EXPECT_EQ(sizeof(RmaNotice), 24u);
  EXPECT_EQ(sizeof(AtomicRequest), 16u);
  EXPECT_EQ(sizeof(AtomicTarget), 24u);
  EXPECT_EQ(sizeof(AtomicReply), 8u);
}

TEST(Wire, KeepsTheNumbersOfItsOperations) {
  EXPECT_EQ(static_cast<int>(Op::kHello), 1);
  EXPECT_EQ(static_cast<int>(Op::kGetReply), 10);
  EXPECT_EQ(static_cast<int>(Op::kConnect), 11);
  EXPECT_EQ(static_cast<int>(Op::kPlaced), 16);
}

TEST(Wire, HasNoTwoFlagsInOneBit) {
  EXPECT_EQ(kHasData + kWantsAck + kMore + kOffered, kHasData | kWantsAck | kMore | kOffered);
}

// Two peers that owe each other as much as they may can still be read.
TEST(Wire, KeepsMoreForAPeerThanThatMayBeOwed) {
  EXPECT_GE(kMostKept, 2 * kMostOwed);
  EXPECT_GT(kMostOwed, kMostAtOnce + kAnswerCost);
  EXPECT_LT(kAnswerCost * kQueueSize, kMostOwed);
}

}  // namespace
}  // namespace clan::ofi
