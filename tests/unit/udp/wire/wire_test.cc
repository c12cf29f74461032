#include "link/udp/wire/wire.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "support/pattern.h"

namespace clan::udp {

std::uint32_t crc32c_by_table(std::span<const std::byte> bytes);

namespace {

using test::Random;

TEST(Crc32c, AgreesWithTheVectorsOfRfc3720) {
  std::vector<std::byte> zeros(32), ones(32, std::byte{0xff}), up(32);
  for (std::size_t i = 0; i < up.size(); ++i) up[i] = static_cast<std::byte>(i);
  EXPECT_EQ(crc32c(zeros), 0x8a9136aau);
  EXPECT_EQ(crc32c(ones), 0x62a8ab43u);
  EXPECT_EQ(crc32c(up), 0x46dd794eu);
  EXPECT_EQ(crc32c_by_table(up), 0x46dd794eu);
}

TEST(Crc32c, IsTheSameByInstructionByTableAndInPieces) {
  Random r(1);
  for (int i = 0; i < 200; ++i) {
    auto bytes = test::pattern(r.below(3000), static_cast<std::uint64_t>(i));
    const std::uint32_t whole = crc32c(bytes);
    ASSERT_EQ(whole, crc32c_by_table(bytes));
    const std::size_t cut = r.below(bytes.size() + 1);
    ASSERT_EQ(whole, crc32c(std::span(bytes).subspan(cut), crc32c(std::span(bytes).first(cut))));
  }
}

std::span<const std::byte> text(std::string_view s) {
  return std::as_bytes(std::span(s.data(), s.size()));
}

Handshake some_handshake(PacketType type, Mode mode) {
  Handshake h;
  h.type = type;
  h.mode = mode;
  h.to = 0x1122334455667788;
  h.id = 0x99aabbccddeeff00;
  h.random[0] = 3;
  h.random[1] = 4;
  h.cookie = {5, 6};
  h.parameters = {7, 8, {9, 10, 11, 12}};
  h.err = 13;
  h.number = 14;
  h.greeting = text("hello there");
  if (mode != Mode::kOff) h.share = text("0123456789abcdef0123456789abcdef");
  return h;
}

TEST(Wire, HandshakesAreReadAsTheyWereWritten) {
  for (int type = 1; type <= 6; ++type) {
    if (static_cast<PacketType>(type) == PacketType::kData) continue;
    for (Mode mode : {Mode::kOff, Mode::kIntegrity, Mode::kEncrypt}) {
      Handshake h = some_handshake(static_cast<PacketType>(type), mode);
      std::vector<std::byte> packet(2000);
      packet.resize(write_handshake(packet, h));
      ASSERT_GT(packet.size(), 0u);
      Handshake read;
      ASSERT_TRUE(read_handshake(packet, &read)) << type;
      EXPECT_EQ(read.mode, mode);
      const bool hello = h.type == PacketType::kHello, accept = h.type == PacketType::kAccept;
      EXPECT_EQ(read.to, hello ? 0 : h.to);
      EXPECT_EQ(read.id, hello || accept ? h.id : 0);
      EXPECT_EQ(read.signed_bytes, h.signed_bytes);
      EXPECT_EQ(read.mac.size(),
                mode == Mode::kOff || h.type == PacketType::kRetry ? 0 : kTagBytes);
      if (hello || accept) {
        EXPECT_EQ(read.parameters.credit[3], 12u);
        EXPECT_EQ(read.random[1], 4u);
        EXPECT_TRUE(std::equal(read.greeting.begin(), read.greeting.end(), h.greeting.begin(),
                               h.greeting.end()));
      }
      if (hello) {
        EXPECT_EQ(packet.size(), kBasePacket);
      }
      // Not a byte less, and for those that are not padded not one more.
      EXPECT_FALSE(read_handshake(std::span(packet).first(packet.size() - 1), &read)) << type;
      packet.push_back(std::byte{1});
      EXPECT_FALSE(read_handshake(packet, &read)) << type;
    }
  }
}

TEST(Wire, SizesAreThoseOfTheDocument) {
  std::vector<std::byte> packet(2000);
  auto size = [&](PacketType type, Mode mode) {
    Handshake h = some_handshake(type, mode);
    h.greeting = {};
    return write_handshake(packet, h);
  };
  EXPECT_EQ(size(PacketType::kHello, Mode::kOff), 1200u);
  EXPECT_EQ(size(PacketType::kRetry, Mode::kOff), 32u);
  EXPECT_EQ(size(PacketType::kRefuse, Mode::kOff), 24u);
  EXPECT_EQ(size(PacketType::kRefuse, Mode::kEncrypt), 40u);
  EXPECT_EQ(size(PacketType::kReset, Mode::kOff), 24u);
  EXPECT_EQ(size(PacketType::kReset, Mode::kEncrypt), 40u);
  EXPECT_EQ(size(PacketType::kAccept, Mode::kOff), 84u);
  EXPECT_EQ(size(PacketType::kAccept, Mode::kEncrypt), 84u + 32 + 16);
}

TEST(Wire, AnyBitThatIsFlippedIsNoticed) {
  Handshake h = some_handshake(PacketType::kRetry, Mode::kOff);
  std::vector<std::byte> packet(100);
  packet.resize(write_handshake(packet, h));
  write_check(packet);
  ASSERT_TRUE(check_is_right(packet));
  for (std::size_t bit = 0; bit < packet.size() * 8; ++bit) {
    packet[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(check_is_right(packet)) << bit;
    packet[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST(Wire, AnAckOfImpossibleRangesIsMalformed) {
  auto ack = [](std::uint64_t largest, std::uint32_t first, std::uint32_t gap,
                std::uint32_t length) {
    std::byte bytes[28];
    Writer w(bytes);
    w.number(std::uint8_t{2});
    w.number(std::uint8_t{1});
    w.number(std::uint16_t{0});
    w.number(std::uint32_t{100});
    w.number(largest);
    w.number(first);
    w.number(gap);
    w.number(length);
    Reader in(bytes);
    Frame f;
    return read_frame(in, &f);
  };
  EXPECT_TRUE(ack(100, 9, 0, 9));
  EXPECT_FALSE(ack(0, 0, 0, 0)) << "number 0 is never used";
  EXPECT_FALSE(ack(10, 10, 0, 0)) << "below 1";
  EXPECT_FALSE(ack(100, 9, 90, 0)) << "the second range is below 1";
  EXPECT_FALSE(ack(100, 9, 80, 50));
  EXPECT_FALSE(ack(5, 0xffffffff, 0, 0));
}

TEST(Wire, FramesThatReachBeyondTheirPacketAreMalformed) {
  std::byte bytes[40];
  Writer w(bytes);
  w.number(static_cast<std::uint8_t>(FrameType::kData));
  w.number(std::uint8_t{1});
  w.number(std::uint16_t{20});
  w.number(std::uint8_t{7});
  w.number(std::uint64_t{64});
  w.zeros(27);
  Frame f;
  Reader whole(bytes);
  ASSERT_TRUE(read_frame(whole, &f));
  EXPECT_EQ(f.payload.size(), 20u);
  EXPECT_EQ(f.header.size(), 7u);
  for (std::size_t n = 0; n < sizeof bytes; ++n) {
    Reader cut{std::span(bytes).first(n)};
    EXPECT_FALSE(read_frame(cut, &f)) << n;
  }
}

}  // namespace
}  // namespace clan::udp
