#include "link/udp/transport/receive_channel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "support/pattern.h"

namespace clan::udp {
namespace {

using Outcome = ReceiveChannel::Outcome;

/// Notes what comes; places it if the test wants that.
struct Notes : MessageSink {
  bool places = false;
  std::vector<std::string> messages;
  std::string placed;

  bool on_fragment(std::uint8_t, std::span<const std::byte>, std::uint32_t total,
                   std::uint32_t offset, std::span<const std::byte> bytes) override {
    if (!places) return false;
    placed.resize(std::max<std::size_t>(placed.size(), total));
    std::transform(bytes.begin(), bytes.end(), placed.begin() + offset,
                   [](std::byte b) { return static_cast<char>(b); });
    return true;
  }
  void on_message(std::uint8_t, std::span<const std::byte>, std::uint32_t,
                  std::span<const std::byte> payload) override {
    messages.emplace_back(reinterpret_cast<const char*>(payload.data()), payload.size());
  }
  void on_sent(std::uint8_t, std::uint64_t) override {}
};

/// `n` bytes of a message, from `offset`.
Frame piece(std::uint64_t position, std::string_view message, std::uint32_t offset, std::size_t n) {
  Frame f;
  f.position = position;
  f.total = static_cast<std::uint32_t>(message.size());
  f.offset = offset;
  f.payload = std::as_bytes(std::span(message)).subspan(offset, n);
  return f;
}
Frame whole(std::uint64_t position, std::string_view message) {
  return piece(position, message, 0, message.size());
}
std::uint64_t after(std::uint64_t position, std::string_view message) {
  return position + kHeaderCharge + message.size();
}

TEST(ReceiveChannel, HandsOnWhatComesInOrder) {
  ReceiveChannel channel(0, 10'000);
  Notes notes;
  EXPECT_EQ(channel.receive(whole(0, "one"), notes), Outcome::kTaken);
  EXPECT_EQ(channel.receive(whole(after(0, "one"), ""), notes), Outcome::kTaken);
  EXPECT_EQ(notes.messages, (std::vector<std::string>{"one", ""}));
}

TEST(ReceiveChannel, HandsOnInTheOrderSentWhatComesInAnother) {
  ReceiveChannel channel(0, 10'000);
  Notes notes;
  const std::uint64_t second = after(0, "one"), third = after(second, "two");
  EXPECT_EQ(channel.receive(whole(third, "three"), notes), Outcome::kTaken);
  EXPECT_EQ(channel.receive(whole(second, "two"), notes), Outcome::kTaken);
  EXPECT_TRUE(notes.messages.empty());
  EXPECT_EQ(channel.receive(whole(0, "one"), notes), Outcome::kTaken);
  EXPECT_EQ(notes.messages, (std::vector<std::string>{"one", "two", "three"}));
}

TEST(ReceiveChannel, TakesEachByteOnceHoweverPiecesOverlap) {
  test::Random r(5);
  for (int round = 0; round < 200; ++round) {
    ReceiveChannel channel(0, 100'000);
    Notes notes;
    notes.places = round % 2 == 0;
    std::string message(1 + r.below(2000), ' ');
    for (char& c : message) c = static_cast<char>('a' + r.below(26));
    for (int i = 0; i < 30; ++i) {
      const auto at = static_cast<std::uint32_t>(r.below(message.size()));
      ASSERT_EQ(channel.receive(piece(0, message, at, 1 + r.below(message.size() - at)), notes),
                Outcome::kTaken);
    }
    for (std::uint32_t at = 0; at < message.size(); at += 100) {
      ASSERT_EQ(channel.receive(
                    piece(0, message, at, std::min<std::size_t>(100, message.size() - at)), notes),
                Outcome::kTaken);
    }
    ASSERT_EQ(notes.messages.size(), 1u);
    ASSERT_EQ(notes.places && notes.messages[0].empty() ? notes.placed : notes.messages[0],
              message);
    ASSERT_EQ(channel.receive(whole(0, message), notes), Outcome::kTaken) << "a repetition";
    ASSERT_EQ(notes.messages.size(), 1u);
  }
}

TEST(ReceiveChannel, BreaksWhereThePeerContradictsItself) {
  Notes notes;
  {
    ReceiveChannel channel(0, 1000);
    EXPECT_EQ(channel.receive(whole(900, std::string(100, 'x')), notes), Outcome::kBroken)
        << "beyond its credit";
  }
  {
    ReceiveChannel channel(0, 1000);
    EXPECT_EQ(channel.receive(piece(0, "abcdef", 2, 2), notes), Outcome::kTaken);
    EXPECT_EQ(channel.receive(piece(0, "abcdefg", 4, 2), notes), Outcome::kBroken)
        << "another length";
  }
  {
    ReceiveChannel channel(0, 1000);
    EXPECT_EQ(channel.receive(piece(0, "abcdef", 2, 2), notes), Outcome::kTaken);
    EXPECT_EQ(channel.receive(whole(10, "x"), notes), Outcome::kBroken)
        << "overlaps another message";
  }
  {
    ReceiveChannel channel(0, 1000);
    EXPECT_EQ(channel.receive(piece(0, "abcdef", 2, 0), notes), Outcome::kBroken)
        << "a piece of nothing";
  }
  EXPECT_TRUE(notes.messages.empty());
}

TEST(ReceiveChannel, AsksForLaterWhatWouldMakeTooManyGaps) {
  ReceiveChannel channel(0, 1'000'000);
  Notes notes;
  const std::string message(4000, 'x');
  for (std::uint32_t i = 0; i < ReceiveChannel::kMostGaps; ++i) {
    ASSERT_EQ(channel.receive(piece(0, message, 2 * i + 1, 1), notes), Outcome::kTaken);
  }
  EXPECT_EQ(channel.receive(piece(0, message, 3000, 1), notes), Outcome::kLater);
  EXPECT_EQ(channel.receive(piece(0, message, 0, 1), notes), Outcome::kTaken)
      << "what fills a gap is taken";
}

TEST(ReceiveChannel, KeepsNoLongMessageThatIsNotPlaced) {
  ReceiveChannel channel(0, 1 << 20);
  Notes notes;
  const std::string message(ReceiveChannel::kMostKept + 1, 'x');
  EXPECT_EQ(channel.receive(piece(0, message, 1000, 1000), notes), Outcome::kBroken);
}

TEST(ReceiveChannel, KeepsWhatWaitsBehindAGapWhenItGivesMemoryBack) {
  ReceiveChannel channel(0, 10'000);
  Notes notes;
  const std::uint64_t second = after(0, "one");
  EXPECT_EQ(channel.receive(whole(second, "two"), notes), Outcome::kTaken);
  channel.release_memory();
  EXPECT_EQ(channel.receive(whole(0, "one"), notes), Outcome::kTaken);
  EXPECT_EQ(notes.messages, (std::vector<std::string>{"one", "two"}));
}

TEST(ReceiveChannel, RaisesItsCreditAfterAQuarterOfTheWindow) {
  ReceiveChannel channel(0, 1000);
  Notes notes;
  EXPECT_EQ(channel.limit(), 1000u);
  EXPECT_FALSE(channel.raise_limit());
  EXPECT_EQ(channel.receive(whole(0, std::string(200, 'x')), notes), Outcome::kTaken);
  EXPECT_TRUE(channel.raise_limit());
  EXPECT_EQ(channel.limit(), 1264u);
}

}  // namespace
}  // namespace clan::udp
