#include "plugins/mpi/channel/segment.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "plugins/mpi/channel/channel_receiver.h"
#include "plugins/mpi/channel/channel_sender.h"

namespace clan::mpi {
namespace {

struct Rank {
  explicit Rank(std::uint32_t channels = 2, std::uint32_t bulk = 64 * 1024,
                std::uint32_t longest = 32 * 1024)
      : context(*Context::create()), segment(*Segment::create(context, channels, bulk, longest)) {}
  mutable Context context;
  Segment segment;
};

/// The segment of `to` with a channel of `from` in it, or none.
std::optional<RemoteSegment> meet(const Rank& from, const Rank& to, std::uint64_t name = 1) {
  auto remote = RemoteSegment::import(from.context, to.segment.cookie(), 10'000);
  if (!remote.ok() || !remote->meet(from.segment, name)) return {};
  return std::move(*remote);
}

TEST(Segment, GivesEachSenderAChannelOfItsOwnUntilThereIsNone) {
  Rank receiver, a, b, c;
  auto first = meet(a, receiver, 1), second = meet(b, receiver, 2);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(receiver.segment.taken(), 2u);
  EXPECT_TRUE(receiver.segment.hears(a.segment.node()) && receiver.segment.hears(b.segment.node()));
  EXPECT_FALSE(receiver.segment.hears(c.segment.node()));
  EXPECT_FALSE(meet(c, receiver, 3));
  EXPECT_FALSE(meet(receiver, c)) << "both sides get the same answer";
  EXPECT_EQ(c.segment.channel(0).control->owner.load(), 0u) << "nothing is kept for it";

  second->leave_channel();
  receiver.segment.give_back(1);
  EXPECT_FALSE(receiver.segment.hears(b.segment.node()));
  EXPECT_FALSE(meet(c, receiver, 3)) << "a no stays a no";
}

TEST(Segment, GivesAChannelAgainThatItsSenderHasLeft) {
  Rank receiver, a, b, c;
  ASSERT_TRUE(meet(a, receiver, 1));
  auto second = meet(b, receiver, 2);
  ASSERT_TRUE(second);
  second->leave_channel();
  receiver.segment.give_back(1);
  EXPECT_TRUE(meet(c, receiver, 3));
}

TEST(Segment, KeepsAChannelForARankThatIsToCome) {
  Rank receiver, a, b, c;
  ASSERT_TRUE(meet(receiver, a));
  EXPECT_FALSE(receiver.segment.hears(a.segment.node())) << "it has not come";
  ASSERT_TRUE(meet(b, receiver, 2));
  EXPECT_FALSE(meet(c, receiver, 3)) << "both channels have an owner";
  ASSERT_TRUE(meet(a, receiver, 1));
  EXPECT_TRUE(receiver.segment.hears(a.segment.node()));
  EXPECT_EQ(receiver.segment.taken(), 2u);
}

TEST(Segment, RefusesARankThatItCannotReachUnlessThatHasCome) {
  Rank receiver, a, b;
  EXPECT_TRUE(receiver.segment.refuse(a.segment.node()));
  EXPECT_FALSE(meet(a, receiver));
  Rank other;
  ASSERT_TRUE(meet(b, other));
  EXPECT_FALSE(other.segment.refuse(b.segment.node()));
}

TEST(Segment, ForgetsARankThatHasDied) {
  Rank receiver, a, b;
  ASSERT_TRUE(meet(a, receiver, 1));
  ASSERT_TRUE(meet(receiver, b));
  receiver.segment.forget(a.segment.node());
  EXPECT_EQ(receiver.segment.channel(0).control->leaving.load(), 1u) << "as if it had left";
  receiver.segment.forget(b.segment.node());
  EXPECT_EQ(receiver.segment.channel(1).control->owner.load(), 0u) << "it never came";
}

TEST(Segment, SaysWhetherRecordsFitBothWays) {
  Rank small(2, 64 * 1024, 32 * 1024), large(2, 1 << 20, 1 << 19), other(2, 1 << 20, 32 * 1024);
  const auto fits = [](Rank& from, Rank& to) {
    auto remote = RemoteSegment::import(from.context, to.segment.cookie(), 10'000);
    return remote.ok() && remote->fits(from.segment);
  };
  EXPECT_FALSE(fits(small, large)) << "an answer would not fit";
  EXPECT_FALSE(fits(large, small));
  EXPECT_TRUE(fits(small, other));
  EXPECT_TRUE(fits(other, small));
}

TEST(Segment, CarriesRecordsFromOneProcessMemoryToAnother) {
  Rank receiver;
  Rank a;
  auto remote = meet(a, receiver);
  ASSERT_TRUE(remote);
  EXPECT_NE(remote->channel().control, receiver.segment.channel(0).control) << "two mappings";
  ChannelSender sender;
  sender.attach(remote->channel());
  ChannelReceiver channel;
  channel.attach(receiver.segment.channel(0));
  ASSERT_TRUE(sender.send_inline(7, "head", 4, "rest", 4));
  Record record;
  ASSERT_EQ(channel.next(&record), ChannelReceiver::Next::kRecord);
  EXPECT_EQ(record.tag, 7);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(record.data), record.bytes), "headrest");
}

TEST(Segment, OfARankThatIsGoneSaysSo) {
  Rank a;
  auto receiver = std::make_unique<Rank>();
  auto remote = meet(a, *receiver);
  ASSERT_TRUE(remote);
  EXPECT_TRUE(remote->check().ok());
  EXPECT_FALSE(remote->leaving());
  receiver->segment.header().leaving.store(1);
  EXPECT_TRUE(remote->leaving());
  receiver.reset();
  for (int i = 0; i < 1000 && remote->check().ok(); ++i) usleep(10'000);
  EXPECT_FALSE(remote->check().ok());
}

TEST(Segment, ThatIsNoneIsRefused) {
  Context owner = *Context::create(), a = *Context::create();
  auto memory = *Memory::allocate(1 << 20);
  auto aperture = Aperture::export_memory(owner, memory, 0, memory.size(), Rights::kReadWrite);
  ASSERT_TRUE(aperture.ok());
  const auto refusal = [&] {
    auto remote = RemoteSegment::import(a, aperture->cookie(), 10'000);
    return remote.ok() ? 0 : remote.error().err;
  };
  EXPECT_EQ(refusal(), EPROTO);
  auto& header = *reinterpret_cast<SegmentHeader*>(memory.data());
  header.magic = kSegmentMagic;
  header.channels = 4;
  header.bulk_bytes = 100'000;
  EXPECT_EQ(refusal(), EPROTO) << "no power of two";
  header.bulk_bytes = 32;
  EXPECT_EQ(refusal(), EPROTO) << "the next channel would not begin a cache line";
  header.bulk_bytes = 1 << 18;
  EXPECT_EQ(refusal(), EPROTO) << "four channels of that size do not fit";
  header.channels = 0xffff'ffff;
  EXPECT_EQ(refusal(), EPROTO);
  header.channels = 2;
  EXPECT_EQ(refusal(), 0);
}

}  // namespace
}  // namespace clan::mpi
