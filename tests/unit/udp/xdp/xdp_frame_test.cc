#include "link/udp/xdp/xdp_frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "support/pattern.h"

namespace clan::udp {
namespace {

constexpr Ipv4 kHere{10, 1, 2, 3}, kThere{192, 168, 70, 9};
constexpr std::uint16_t kOurPort = 40'000, kTheirPort = 4790;

std::vector<std::byte> frame_of(std::span<const std::byte> payload) {
  const FrameHeader header({2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}, kHere, kOurPort, kThere,
                           kTheirPort);
  std::vector<std::byte> frame(kFrameHeader + payload.size());
  header.write(frame, payload);
  return frame;
}

bool parses(std::vector<std::byte> frame, ParsedFrame* out = nullptr) {
  ParsedFrame parsed;
  return parse_frame(frame, kThere, kTheirPort, out == nullptr ? &parsed : out);
}

// Changes a byte of the header of IPv4 and makes its checksum right again.
std::vector<std::byte> changed(std::vector<std::byte> frame, std::size_t at, unsigned value) {
  frame[at] = static_cast<std::byte>(value);
  frame[24] = frame[25] = {};
  const std::uint16_t sum = checksum_fold(checksum_sum(std::span(frame).subspan(14, 20)));
  std::memcpy(frame.data() + 24, &sum, sizeof sum);
  return frame;
}

// RFC 1071, word by word, as a router or a kernel would sum it.
unsigned slow_sum(std::span<const std::byte> bytes, unsigned sum = 0) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    sum += std::to_integer<unsigned>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
    sum = (sum >> 16) + (sum & 0xffff);
  }
  return sum;
}

TEST(XdpFrame, WhatIsWrittenIsRead) {
  for (std::size_t bytes : {1u, 2u, 17u, 64u, 1200u, 1472u}) {
    const auto payload = test::pattern(bytes, bytes);
    auto frame = frame_of(payload);
    ParsedFrame parsed;
    ASSERT_TRUE(parse_frame(frame, kThere, kTheirPort, &parsed));
    EXPECT_TRUE(
        std::equal(payload.begin(), payload.end(), parsed.payload.begin(), parsed.payload.end()));
    EXPECT_EQ(parsed.from, socket_address_of(kHere, kOurPort));
  }
}

TEST(XdpFrame, ChecksumsAreTheNetworks) {
  for (std::size_t bytes = 1; bytes < 200; ++bytes) {
    const auto frame = frame_of(test::pattern(bytes, bytes));
    const auto all = std::span<const std::byte>(frame);
    EXPECT_EQ(slow_sum(all.subspan(14, 20)), 0xffffu);
    // The pseudo-header: both addresses, the protocol, and the datagram's length.
    const unsigned pseudo = slow_sum(all.subspan(26, 8)) + 17 + static_cast<unsigned>(8 + bytes);
    EXPECT_EQ(slow_sum(all.subspan(34), (pseudo >> 16) + (pseudo & 0xffff)), 0xffffu) << bytes;
    EXPECT_NE(std::to_integer<unsigned>(frame[40]) + std::to_integer<unsigned>(frame[41]), 0u)
        << "0 says that there is no checksum";
  }
}

TEST(XdpFrame, IsNeverCutByARouter) {
  const auto frame = frame_of(test::pattern(100, 1));
  EXPECT_EQ(frame[20], std::byte{0x40}) << "don't fragment";
  EXPECT_EQ(frame[22], std::byte{64}) << "the hops it may take";
}

TEST(XdpFrame, PaddingBehindThePacketIsNoPayload) {
  auto frame = frame_of(test::pattern(5, 1));
  frame.resize(60);
  ParsedFrame parsed;
  ASSERT_TRUE(parse_frame(frame, kThere, kTheirPort, &parsed));
  EXPECT_EQ(parsed.payload.size(), 5u);
}

TEST(XdpFrame, EveryTruncationIsRefused) {
  const auto whole = frame_of(test::pattern(64, 1));
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_FALSE(parses({whole.begin(), whole.begin() + static_cast<long>(bytes)})) << bytes;
  }
}

TEST(XdpFrame, LengthsThatContradictEachOtherAreRefused) {
  const auto whole = frame_of(test::pattern(64, 1));
  ASSERT_TRUE(parses(changed(whole, 17, 92)));
  EXPECT_FALSE(parses(changed(whole, 17, 93))) << "longer than the frame";
  EXPECT_FALSE(parses(changed(whole, 17, 91))) << "shorter than the datagram";
  for (unsigned length : {0u, 7u, 8u, 71u, 73u, 255u}) {
    auto frame = whole;
    frame[39] = static_cast<std::byte>(length);
    EXPECT_FALSE(parses(frame)) << length;
  }
}

TEST(XdpFrame, FragmentsOptionsAndOtherProtocolsAreRefused) {
  const auto whole = frame_of(test::pattern(64, 1));
  EXPECT_FALSE(parses(changed(whole, 20, 0x20))) << "more fragments";
  EXPECT_FALSE(parses(changed(whole, 21, 1))) << "not the first one";
  EXPECT_FALSE(parses(changed(whole, 14, 0x46))) << "options";
  EXPECT_FALSE(parses(changed(whole, 14, 0x65))) << "not version 4";
  EXPECT_FALSE(parses(changed(whole, 23, 6))) << "TCP";
  auto other = whole;
  other[12] = std::byte{0x86};
  EXPECT_FALSE(parses(other)) << "not IPv4";
}

TEST(XdpFrame, OthersPacketsAreRefused) {
  const auto whole = frame_of(test::pattern(64, 1));
  EXPECT_FALSE(parses(changed(whole, 33, 10))) << "another address";
  auto other = whole;
  other[37] ^= std::byte{1};
  EXPECT_FALSE(parses(other)) << "another port";
}

TEST(XdpFrame, ASourceThatNoWireHasIsRefused) {
  const auto whole = frame_of(test::pattern(64, 1));
  for (unsigned first : {0u, 127u, 224u, 239u, 240u, 255u}) {
    EXPECT_FALSE(parses(changed(whole, 26, first))) << first;
  }
  auto other = whole;
  other[34] = other[35] = {};
  EXPECT_FALSE(parses(other)) << "port 0";
}

TEST(XdpFrame, AChangedHeaderFailsItsChecksum) {
  const auto whole = frame_of(test::pattern(64, 1));
  for (std::size_t at = 14; at < 34; ++at) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      auto frame = whole;
      frame[at] ^= static_cast<std::byte>(1u << bit);
      EXPECT_FALSE(parses(frame)) << at << " bit " << bit;
    }
  }
}

TEST(XdpFrame, GarbageIsReadWithinItsBounds) {
  test::Random random(7);
  const auto whole = frame_of(test::pattern(64, 1));
  for (int i = 0; i < 100'000; ++i) {
    std::vector<std::byte> frame(whole.begin(),
                                 whole.begin() + static_cast<long>(random.below(whole.size() + 1)));
    for (std::uint64_t n = random.below(4); n > 0 && !frame.empty(); --n)
      frame[random.below(frame.size())] = static_cast<std::byte>(random.below(256));
    ParsedFrame parsed;
    if (!parse_frame(frame, kThere, kTheirPort, &parsed)) continue;
    EXPECT_GE(parsed.payload.data(), frame.data() + kFrameHeader);
    EXPECT_LE(parsed.payload.data() + parsed.payload.size(), frame.data() + frame.size());
    EXPECT_FALSE(parsed.payload.empty());
  }
}

}  // namespace
}  // namespace clan::udp
