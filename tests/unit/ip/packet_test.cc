#include "packet.h"

#include <gtest/gtest.h>

#include "frames.h"
#include "hello.h"

namespace clan::ip {
namespace {

TEST(IpPacket, IsParsedOfBothFamiliesWithItsAddresses) {
  for (const bool v6 : {false, true}) {
    const auto packet = frame(v6, IPPROTO_UDP, 100).parsed();
    ASSERT_TRUE(packet);
    EXPECT_EQ(to_string(packet->source), v6 ? "fd09::2" : "10.9.0.2");
    EXPECT_EQ(to_string(packet->destination), v6 ? "fd09::1" : "10.9.0.1");
    EXPECT_EQ(packet->protocol, IPPROTO_UDP);
  }
}

TEST(IpPacket, OfAnotherVersionOrLengthIsNone) {
  for (const bool v6 : {false, true}) {
    Frame f = frame(v6, IPPROTO_UDP, 100);
    f.ip.push_back({});
    EXPECT_FALSE(f.parsed()) << "longer than it says";
    f.ip.resize(99);
    EXPECT_FALSE(f.parsed()) << "cut short";
    f.ip.resize(v6 ? 39 : 19);
    EXPECT_FALSE(f.parsed()) << "no header";
    f.ip.clear();
    EXPECT_FALSE(f.parsed());
  }
  Frame f = frame(false, IPPROTO_UDP, 100);
  for (const int first : {0x44, 0x5f, 0x00, 0xf5}) {
    f.ip[0] = static_cast<std::byte>(first);
    EXPECT_FALSE(f.parsed()) << std::hex << first;
  }
}

TEST(IpPacket, PassesWithTheHeaderThatTheKernelGivesIt) {
  for (const bool v6 : {false, true}) {
    EXPECT_TRUE(frame(v6, IPPROTO_GRE, 100).passes());
    EXPECT_TRUE(segments(v6).passes());
    Frame ecn = segments(v6);
    ecn.header.gso_type |= VirtioHeader::kEcn;
    EXPECT_TRUE(ecn.passes());
    Frame udp = frame(v6, IPPROTO_UDP, 4000);
    const auto start = static_cast<std::uint16_t>(v6 ? 40 : 20);
    udp.header = {VirtioHeader::kNeedsCsum, VirtioHeader::kUdp, 0, 1200, start, 6};
    EXPECT_TRUE(udp.passes());
  }
}

TEST(IpPacket, OfAnOffloadThatWasNotAgreedDoesNotPass) {
  EXPECT_FALSE(segments(false).passes(kAllOffloads & ~kTso4));
  EXPECT_FALSE(segments(true).passes(kAllOffloads & ~kTso6));
  EXPECT_TRUE(segments(true).passes(kCsum | kTso6));
}

TEST(IpPacket, WhoseHeaderContradictsItDoesNotPass) {
  using Change = void (*)(Frame&);
  const Change changes[] = {
      [](Frame& f) { f.header.flags = 0; },
      [](Frame& f) { f.header.flags |= 4; },
      [](Frame& f) { f.header.gso_type = 3; },  // UDP by fragments, which no kernel has any more
      [](Frame& f) {
        f.header.gso_type = f.ip[0] == std::byte{0x45} ? VirtioHeader::kTcp6 : VirtioHeader::kTcp4;
      },
      [](Frame& f) { f.header.gso_type = VirtioHeader::kUdp; },
      [](Frame& f) { f.header.gso_size = 0; },
      [](Frame& f) { f.header.csum_start = 4; },
      [](Frame& f) { f.header.csum_start = 65'535; },
      [](Frame& f) { f.header.csum_offset = 65'535; },
      [](Frame& f) { f.header.csum_offset = 6; },
      [](Frame& f) {
        f.ip[f.header.csum_start + 12u] = std::byte{0x40};
      },  // 16 bytes of TCP header
      [](Frame& f) {
        f.ip.resize(60);  // of IPv4 beyond its end
        f.set16(f.ip[0] == std::byte{0x45} ? 2 : 4, f.ip[0] == std::byte{0x45} ? 60 : 20);
        f.ip[f.header.csum_start + 12u < 60 ? f.header.csum_start + 12u : 59] = std::byte{0xf0};
      },
  };
  for (const bool v6 : {false, true}) {
    for (std::size_t i = 0; i < std::size(changes); ++i) {
      Frame f = segments(v6);
      changes[i](f);
      EXPECT_FALSE(f.passes()) << i << (v6 ? " of IPv6" : " of IPv4");
    }
  }
  Frame fragment = segments(false);
  fragment.set16(6, 100);
  EXPECT_FALSE(fragment.passes());
}

TEST(IpPacket, GetsTheLengthOfItsHeadersFromItself) {
  Frame f = segments(false);
  f.header.hdr_len = 65'535;
  EXPECT_TRUE(f.passes());
  EXPECT_EQ(f.header.hdr_len, 52);
  EXPECT_EQ(wire_size(f.header, f.ip.size()), 1500u);
  Frame plain = frame(false, IPPROTO_UDP, 100);
  plain.header.gso_size = 7;
  EXPECT_TRUE(plain.passes());
  EXPECT_EQ(plain.header.gso_size, 0);
  EXPECT_EQ(wire_size(plain.header, plain.ip.size()), 100u);
}

TEST(IpHello, IsTakenWholeAndOfOneAddress) {
  Hello hello;
  hello.mtu = 1500;
  const Address from = address("10.9.0.2");
  std::copy(from.bytes.begin(), from.bytes.end(), hello.address);
  const auto bytes = std::as_bytes(std::span(&hello, 1));
  EXPECT_TRUE(is_hello(bytes));
  ASSERT_TRUE(parse_hello(bytes));
  EXPECT_EQ(parse_hello(bytes)->from(), from);
  EXPECT_FALSE(parse_hello(bytes.first(31)));
  hello.mtu = 67;
  EXPECT_FALSE(parse_hello(bytes));
  hello.mtu = 1500;
  hello.address[0] = 224;
  EXPECT_FALSE(parse_hello(bytes));
  const Frame packet = segments(false);
  EXPECT_FALSE(is_hello(std::as_bytes(std::span(&packet.header, 1))));
}

}  // namespace
}  // namespace clan::ip
