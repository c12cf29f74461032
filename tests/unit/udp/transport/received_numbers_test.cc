#include "link/udp/transport/received_numbers.h"

#include <gtest/gtest.h>

#include <set>

#include "support/pattern.h"
#include "udp/allocations.h"

namespace clan::udp {
namespace {

using test::Random;

TEST(ReceivedNumbers, TakeEachNumberOnce) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random r(seed);
    ReceivedNumbers received;
    std::set<std::uint64_t> taken;
    std::uint64_t newest = 1;
    std::int64_t memory = 0;
    for (int i = 0; i < 5000; ++i) {
      newest += r.below(3);
      const std::uint64_t n =
          newest - std::min(newest - 1, r.below(10) == 0 ? r.below(500) : r.below(3));
      if (received.seen(n)) continue;
      {
        const test::Charge charge(&memory);
        received.add(n);
      }
      ASSERT_TRUE(taken.insert(n).second) << n << " was taken twice";
    }
    EXPECT_LE(memory, 4096);
  }
}

TEST(ReceivedNumbers, AnAckSaysWhatHasCome) {
  Random r(3);
  ReceivedNumbers received;
  std::set<std::uint64_t> came;
  for (int i = 0; i < 40; ++i) {
    const std::uint64_t n = 1 + r.below(60);
    if (received.seen(n)) continue;
    received.add(n);
    came.insert(n);
    std::byte bytes[400];
    Writer w(bytes);
    ASSERT_TRUE(received.write_ack(w, 7, 99));
    Reader in{std::span(bytes).first(w.size())};
    Frame f;
    ASSERT_TRUE(read_frame(in, &f));
    ASSERT_EQ(in.left(), 0u);
    EXPECT_EQ(f.delay_us, 7u);
    EXPECT_EQ(f.packet_window, 99u);
    std::set<std::uint64_t> said;
    for (std::uint32_t k = 0; k < f.ranges; ++k) {
      for (std::uint64_t m = f.range[k].first; m <= f.range[k].last; ++m) said.insert(m);
    }
    ASSERT_EQ(said, came);
  }
}

TEST(ReceivedNumbers, TellWhetherThePeerShouldHearAtOnce) {
  ReceivedNumbers received;
  EXPECT_FALSE(received.any());
  EXPECT_FALSE(received.add(1));
  EXPECT_FALSE(received.add(2));
  EXPECT_TRUE(received.add(4)) << "3 is missing";
  EXPECT_TRUE(received.add(3)) << "a gap is filled";
  EXPECT_FALSE(received.add(5));
  EXPECT_EQ(received.largest(), 5u);
}

TEST(ReceivedNumbers, CountWhatLiesBelowTheOldestOfTooManyGapsAsReceived) {
  ReceivedNumbers received;
  for (std::uint64_t i = 0; i <= ReceivedNumbers::kMostRanges; ++i) received.add(10 + 2 * i);
  EXPECT_TRUE(received.seen(1));
  EXPECT_TRUE(received.seen(10));
  EXPECT_FALSE(received.seen(13));
}

TEST(ReceivedNumbers, LeaveOutOfAnAckWhatThePeerKnows) {
  ReceivedNumbers received;
  for (const std::uint64_t n : {1, 3, 5, 7}) received.add(n);
  received.stop_reporting(4);
  std::byte bytes[400];
  Writer w(bytes);
  ASSERT_TRUE(received.write_ack(w, 0, 0));
  Reader in{std::span(bytes).first(w.size())};
  Frame f;
  ASSERT_TRUE(read_frame(in, &f));
  ASSERT_EQ(f.ranges, 2u);
  EXPECT_EQ(f.range[1].first, 5u);
}

TEST(ReceivedNumbers, WriteNoAckWithoutRoom) {
  ReceivedNumbers received;
  std::byte bytes[19];
  Writer none(bytes);
  EXPECT_FALSE(received.write_ack(none, 0, 0)) << "nothing has come";
  received.add(1);
  Writer w(bytes);
  EXPECT_FALSE(received.write_ack(w, 0, 0));
  EXPECT_EQ(w.size(), 0u);
}

}  // namespace
}  // namespace clan::udp
