#include "plugins/mpi/segment.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

namespace clan::mpi {
namespace {

struct Rank {
  explicit Rank(std::uint32_t channels = 2, std::uint32_t bulk = 64 * 1024,
                std::uint32_t longest = 32 * 1024)
      : context(*Context::create()),
        segment(*Segment::create(context, channels, bulk, longest)) {}
  Context context;
  Segment segment;
};

TEST(Segment, GivesEachSenderAChannelOfItsOwnUntilThereIsNone) {
  Rank receiver;
  Context a = *Context::create(), b = *Context::create(), c = *Context::create();
  auto first = RemoteSegment::take_channel(a, receiver.segment.cookie(), 1, 10'000);
  auto second = RemoteSegment::take_channel(b, receiver.segment.cookie(), 2, 10'000);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(receiver.segment.taken(), 2u);
  EXPECT_TRUE(receiver.segment.hears(a.node()) && receiver.segment.hears(b.node()));
  EXPECT_FALSE(receiver.segment.hears(c.node()));
  auto third = RemoteSegment::take_channel(c, receiver.segment.cookie(), 3, 10'000);
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.error().err, ENOSPC);

  second->leave_channel();
  receiver.segment.give_back(1);
  EXPECT_FALSE(receiver.segment.hears(b.node()));
  EXPECT_TRUE(RemoteSegment::take_channel(c, receiver.segment.cookie(), 3, 10'000).ok());
}

TEST(Segment, KeepsAChannelForARankThatIsToCome) {
  Rank receiver;
  Context a = *Context::create(), b = *Context::create(), c = *Context::create();
  ASSERT_TRUE(receiver.segment.reserve(a.node()));
  EXPECT_TRUE(receiver.segment.reserve(a.node())) << "the same one";
  EXPECT_FALSE(receiver.segment.hears(a.node())) << "it has not come";
  auto second = RemoteSegment::take_channel(b, receiver.segment.cookie(), 2, 10'000);
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE(RemoteSegment::take_channel(c, receiver.segment.cookie(), 3, 10'000).ok());
  EXPECT_FALSE(receiver.segment.reserve(c.node())) << "both channels have an owner";
  auto first = RemoteSegment::take_channel(a, receiver.segment.cookie(), 1, 10'000);
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(receiver.segment.hears(a.node()));
  EXPECT_EQ(receiver.segment.taken(), 2u);
}

TEST(Segment, MayReleaseWhatItKeepsUntilTheRankHasCome) {
  Rank receiver;
  Context a = *Context::create(), b = *Context::create(), c = *Context::create();
  ASSERT_TRUE(receiver.segment.reserve(a.node()) && receiver.segment.reserve(b.node()));
  receiver.segment.release(a.node());
  EXPECT_TRUE(receiver.segment.reserve(c.node()));
  auto second = RemoteSegment::take_channel(b, receiver.segment.cookie(), 2, 10'000);
  ASSERT_TRUE(second.ok());
  receiver.segment.release(b.node());
  EXPECT_TRUE(receiver.segment.hears(b.node())) << "it sends already";
  EXPECT_FALSE(RemoteSegment::take_channel(a, receiver.segment.cookie(), 1, 10'000).ok());
  receiver.segment.release(c.node());
  EXPECT_TRUE(RemoteSegment::take_channel(a, receiver.segment.cookie(), 1, 10'000).ok());
}

TEST(Segment, SaysWhetherRecordsFitBothWays) {
  Rank small(2, 64 * 1024, 32 * 1024), large(2, 1 << 20, 1 << 19), other(2, 1 << 20, 32 * 1024);
  const auto fits = [](Rank& from, Rank& to) {
    auto remote = RemoteSegment::take_channel(from.context, to.segment.cookie(), 1, 10'000);
    return remote.ok() && remote->fits(from.segment);
  };
  EXPECT_FALSE(fits(small, large)) << "an answer would not fit";
  EXPECT_FALSE(fits(large, small));
  EXPECT_TRUE(fits(small, other));
  EXPECT_TRUE(fits(other, small));
}

TEST(Segment, CarriesRecordsFromOneProcessMemoryToAnother) {
  Rank receiver;
  Context a = *Context::create();
  auto remote = RemoteSegment::take_channel(a, receiver.segment.cookie(), 1, 10'000);
  ASSERT_TRUE(remote.ok());
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
  Context a = *Context::create();
  auto receiver = std::make_unique<Rank>();
  auto remote = RemoteSegment::take_channel(a, receiver->segment.cookie(), 1, 10'000);
  ASSERT_TRUE(remote.ok());
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
    auto remote = RemoteSegment::take_channel(a, aperture->cookie(), 1, 10'000);
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
