#include "link/udp/transport/send_channel.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "support/pattern.h"
#include "udp/allocations.h"

namespace clan::udp {
namespace {

using test::pattern;

Message message(std::string_view text) {
  Message m;
  m.payload = std::as_bytes(std::span(text));
  return m;
}

/// A frame as the peer reads it, and the positions it carries.
struct Sent {
  Frame frame;
  Range carried;
  std::vector<std::byte> bytes;
  std::string payload() const {
    return {reinterpret_cast<const char*>(frame.payload.data()), frame.payload.size()};
  }
  std::string header() const {
    return {reinterpret_cast<const char*>(frame.header.data()), frame.header.size()};
  }
};

struct Sending : testing::Test {
  Sending() { channel.set_limit(1 << 20); }
  /// The next frame in a packet with `room` bytes left; false: none that makes sense.
  bool next(std::size_t room = 1000, bool alone = false) {
    sent.bytes.assign(room, std::byte{});
    Writer out(sent.bytes);
    if (!channel.write_frame(out, alone, &sent.carried)) {
      EXPECT_EQ(out.size(), 0u);
      return false;
    }
    EXPECT_TRUE(out.ok());
    Reader in(std::span<const std::byte>(sent.bytes).first(out.size()));
    EXPECT_TRUE(read_frame(in, &sent.frame));
    EXPECT_EQ(in.left(), 0u);
    return true;
  }
  /// The tokens of messages that are complete with it.
  std::vector<std::uint64_t> acked(std::uint64_t begin, std::uint64_t end) {
    std::vector<std::uint64_t> tokens;
    channel.on_acked({begin, end}, [&](std::uint64_t token) { tokens.push_back(token); });
    return tokens;
  }
  void push(std::string_view text, std::uint64_t token) {
    Message m = message(text);
    m.notify = true;
    m.token = token;
    channel.push(m);
  }

  SendChannel channel{2};
  Sent sent;
};

using Tokens = std::vector<std::uint64_t>;

TEST_F(Sending, LetsGoOfMemoryOnceAllThatIsInItHasBeenAcknowledged) {
  auto kept = std::make_shared<nic::PinnedPayload>(1);
  kept->hand_over();
  Message m = message("in it");
  m.copy = false;
  channel.push(m);
  m.kept = kept;
  channel.push(m);
  m.kept.reset();
  channel.push(m);
  while (next()) {
  }
  const std::uint64_t each = kHeaderCharge + 5;
  (void)acked(each, 2 * each);
  EXPECT_FALSE(kept->is_free()) << "the one before it may have to leave again";
  (void)acked(0, each);
  EXPECT_TRUE(kept->is_free());
  EXPECT_EQ(kept.use_count(), 1);
}

TEST_F(Sending, AMessageThatFitsLeavesInOneFrameWithItsHeader) {
  constexpr std::string_view kHeader = "head";
  Message m = message("payload");
  m.header = std::as_bytes(std::span(kHeader));
  channel.push(m);
  EXPECT_EQ(channel.queued_bytes(), kHeaderCharge + 7);
  ASSERT_TRUE(next());
  EXPECT_EQ(sent.frame.type, FrameType::kData);
  EXPECT_EQ(sent.frame.channel, 2);
  EXPECT_EQ(sent.frame.position, 0u);
  EXPECT_EQ(sent.header(), "head");
  EXPECT_EQ(sent.payload(), "payload");
  EXPECT_EQ(sent.carried, (Range{0, kHeaderCharge + 7}));
  EXPECT_EQ(channel.queued_bytes(), 0u);
  EXPECT_FALSE(channel.ready());
  EXPECT_FALSE(channel.done()) << "it has not been acknowledged";
}

TEST_F(Sending, MessagesTakePositionsOneBehindTheOther) {
  channel.push(message("one"));
  channel.push(message(""));
  channel.push(message("three"));
  ASSERT_TRUE(next());
  ASSERT_TRUE(next());
  EXPECT_EQ(sent.frame.position, kHeaderCharge + 3);
  EXPECT_EQ(sent.payload(), "");
  ASSERT_TRUE(next());
  EXPECT_EQ(sent.frame.position, 2 * kHeaderCharge + 3);
  EXPECT_EQ(sent.payload(), "three");
  EXPECT_FALSE(next());
}

TEST_F(Sending, ALongMessageLeavesInPieces) {
  const auto bytes = pattern(5000, 1);
  Message m;
  m.payload = bytes;
  channel.push(m);
  std::vector<std::byte> got;
  std::uint64_t expected = 0;
  while (next(1200, true)) {
    EXPECT_EQ(sent.frame.type, FrameType::kFragment);
    EXPECT_EQ(sent.frame.total, 5000u);
    EXPECT_EQ(sent.frame.offset, got.size());
    EXPECT_EQ(sent.carried.begin, expected);
    expected = sent.carried.end;
    got.insert(got.end(), sent.frame.payload.begin(), sent.frame.payload.end());
  }
  EXPECT_EQ(expected, kHeaderCharge + 5000);
  EXPECT_EQ(got, bytes);
}

TEST_F(Sending, AMessageThatFitsIntoAPacketOfItsOwnIsNotCutToFillAnother) {
  channel.push(message(std::string(600, 'x')));
  EXPECT_FALSE(next(500));
  ASSERT_TRUE(next(500, true)) << "there is no larger packet";
  EXPECT_EQ(sent.frame.type, FrameType::kFragment);
}

TEST_F(Sending, AMessageLeavesWholeWhereItJustFits) {
  const std::string text(200, 'x');
  channel.push(message(text));
  channel.push(message(text));
  ASSERT_TRUE(next(kWholeFrame + 200));
  EXPECT_EQ(sent.frame.type, FrameType::kData);
  ASSERT_TRUE(next(kWholeFrame + 199, true));
  EXPECT_EQ(sent.frame.type, FrameType::kFragment);
}

TEST_F(Sending, APieceThatIsTooSmallWaitsForTheNextPacket) {
  channel.push(message(std::string(5000, 'x')));
  EXPECT_FALSE(next(kFragmentFrame + 255));
  ASSERT_TRUE(next(kFragmentFrame + 256));
  EXPECT_EQ(sent.payload().size(), 256u);
}

TEST_F(Sending, NothingLeavesBeyondThePeersCredit) {
  SendChannel tight(1);
  tight.set_limit(kHeaderCharge + 10);
  std::vector<std::byte> packet(1000);
  Range carried;
  tight.push(message(std::string(30, 'x')));
  ASSERT_TRUE(tight.ready());
  {
    Writer out(packet);
    ASSERT_TRUE(tight.write_frame(out, true, &carried));
  }
  EXPECT_EQ(carried, (Range{0, kHeaderCharge + 10}));
  EXPECT_FALSE(tight.ready());
  EXPECT_TRUE(tight.blocked_by_credit());
  tight.set_limit(1000);
  tight.set_limit(20);  // an older word of the peer
  EXPECT_TRUE(tight.ready());
  EXPECT_FALSE(tight.blocked_by_credit());
  Writer out(packet);
  ASSERT_TRUE(tight.write_frame(out, true, &carried));
  EXPECT_EQ(carried, (Range{kHeaderCharge + 10, kHeaderCharge + 30}));
}

TEST_F(Sending, IsDoneWhenAllHasBeenAcknowledgedAndTellsThoseWhoAsked) {
  push("one", 11);
  channel.push(message("two"));
  push("three", 13);
  while (next()) {
  }
  const std::uint64_t first = kHeaderCharge + 3, second = 2 * first;
  const std::uint64_t third = second + kHeaderCharge + 5;
  EXPECT_EQ(acked(first, second), Tokens{}) << "the one before it is missing";
  EXPECT_EQ(acked(0, first), Tokens{11});
  EXPECT_EQ(acked(0, first), Tokens{}) << "said again";
  EXPECT_FALSE(channel.done());
  EXPECT_EQ(acked(second, third), Tokens{13});
  EXPECT_TRUE(channel.done());
  EXPECT_EQ(acked(third, third + 100), Tokens{}) << "nobody sent that";
  push("four", 14);
  ASSERT_TRUE(next());
  EXPECT_EQ(sent.payload(), "four");
  EXPECT_EQ(acked(third, third + kHeaderCharge + 4), Tokens{14});
  EXPECT_TRUE(channel.done());
}

TEST_F(Sending, WhatIsLostLeavesAgainBeforeWhatIsNew) {
  push("one", 1);
  push("two", 2);
  ASSERT_TRUE(next());
  const Range one = sent.carried;
  channel.on_lost(one);
  EXPECT_TRUE(channel.ready());
  ASSERT_TRUE(next());
  EXPECT_EQ(sent.payload(), "one");
  EXPECT_EQ(sent.carried, one);
  ASSERT_TRUE(next());
  EXPECT_EQ(sent.payload(), "two");
}

TEST_F(Sending, WhatIsLostIsNotCutToFillAPacketEither) {
  channel.push(message(std::string(600, 'x')));
  ASSERT_TRUE(next());
  channel.on_lost(sent.carried);
  EXPECT_FALSE(next(500));
  ASSERT_TRUE(next());
  EXPECT_EQ(sent.payload().size(), 600u);
}

TEST_F(Sending, APieceThatIsLostLeavesAgainAlone) {
  const auto bytes = pattern(3000, 3);
  Message m;
  m.payload = bytes;
  channel.push(m);
  std::vector<Range> pieces;
  while (next(1200, true)) pieces.push_back(sent.carried);
  ASSERT_EQ(pieces.size(), 3u);
  channel.on_lost(pieces[1]);
  ASSERT_TRUE(next(1200, true));
  EXPECT_EQ(sent.carried, pieces[1]);
  EXPECT_EQ(sent.frame.offset, pieces[1].begin - kHeaderCharge);
  EXPECT_TRUE(test::is_pattern(sent.frame.payload, 3, sent.frame.offset));
  EXPECT_FALSE(next(1200, true));
}

TEST_F(Sending, WhatWasLostAndHasArrivedAfterAllDoesNotLeaveAgain) {
  push("one", 1);
  push("two", 2);
  ASSERT_TRUE(next());
  const Range one = sent.carried;
  ASSERT_TRUE(next());
  const Range two = sent.carried;
  channel.on_lost(one);
  EXPECT_EQ(acked(one.begin, one.end), Tokens{1});
  EXPECT_FALSE(channel.ready());
  EXPECT_EQ(acked(two.begin, two.end), Tokens{2});
  channel.on_lost(two);
  EXPECT_FALSE(channel.ready()) << "its acknowledgement came first";
}

TEST_F(Sending, WhatIsLostInPartLeavesAgainWithoutWhatHasArrived) {
  push("one", 1);
  push("two", 2);
  push("six", 3);
  while (next()) {
  }
  const std::uint64_t each = kHeaderCharge + 3;
  EXPECT_EQ(acked(each, 2 * each), Tokens{});
  channel.on_lost({0, 3 * each});
  ASSERT_TRUE(next());
  EXPECT_EQ(sent.payload(), "one");
  ASSERT_TRUE(next());
  EXPECT_EQ(sent.payload(), "six");
  EXPECT_FALSE(next());
}

TEST_F(Sending, APayloadThatIsNotCopiedIsReadWhereItIsUntilItIsDetached) {
  std::string text = "lent";
  Message m = message(text);
  m.copy = false;
  m.notify = true;
  m.token = 5;
  channel.push(m);
  text = "LENT";
  ASSERT_TRUE(next());
  EXPECT_EQ(sent.payload(), "LENT");
  channel.detach(6);
  channel.detach(5);
  text = "----";
  channel.on_lost(sent.carried);
  ASSERT_TRUE(next());
  EXPECT_EQ(sent.payload(), "LENT");
}

TEST_F(Sending, AllPayloadsCanBeDetachedAtOnceAndOneByItsTokenAlone) {
  std::string one = "one", two = "two";
  for (std::string* text : {&one, &two}) {
    Message m = message(*text);
    m.copy = false;
    m.notify = true;
    m.token = text == &one ? 1 : 2;
    channel.push(m);
  }
  channel.detach(2);
  one = "ONE";
  two = "TWO";
  ASSERT_TRUE(next());
  EXPECT_EQ(sent.payload(), "ONE");
  const Range carried = sent.carried;
  ASSERT_TRUE(next());
  EXPECT_EQ(sent.payload(), "two");
  channel.detach({});
  one = "---";
  channel.on_lost(carried);
  ASSERT_TRUE(next());
  EXPECT_EQ(sent.payload(), "ONE");
}

TEST_F(Sending, GivesItsMemoryBackWhenNothingIsUnderWay) {
  std::int64_t used = 0;
  const test::Charge charge(&used);
  push(std::string(10'000, 'x'), 1);
  channel.release_memory();
#if CLAN_COUNTS_ALLOCATIONS
  EXPECT_GE(used, 10'000) << "a message waits";
#endif
  while (next(1200, true)) {
  }
  EXPECT_EQ(acked(0, kHeaderCharge + 10'000), Tokens{1});
  channel.release_memory();
  EXPECT_LT(used, 10'000);
}

}  // namespace
}  // namespace clan::udp
