#include "proxy_header.h"

#include <gtest/gtest.h>

#include <string>

namespace clan::gateway {
namespace {

using State = ProxyHeader::State;

const std::string kSignature("\r\n\r\n\0\r\nQUIT\n", 12);

std::string v2(int version_command, int family, const std::string& rest) {
  std::string header = kSignature;
  header += {static_cast<char>(version_command), static_cast<char>(family),
             static_cast<char>(rest.size() >> 8), static_cast<char>(rest.size())};
  return header + rest;
}

const std::string kFour("\xc0\xa8\x00\x01\xc0\xa8\x00\x0b\xdc\x04\x01\xbb", 12);

Address address(const std::string& text) {
  std::string error;
  return Address::all_of(text, error).at(0);
}

void expect_wrong(const std::string& bytes) {
  EXPECT_EQ(State::kWrong, read_proxy_header(bytes).state) << bytes;
}

TEST(ProxyHeaderV1, SaysWhoTheClientIs) {
  const std::string text = "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\nGET /";
  const ProxyHeader header = read_proxy_header(text);
  ASSERT_EQ(State::kWhole, header.state);
  EXPECT_EQ(text.find("GET"), header.bytes);
  EXPECT_EQ("192.168.0.1:56324", header.addresses->source.text());
  EXPECT_EQ("192.168.0.11:443", header.addresses->destination.text());
  const ProxyHeader six = read_proxy_header("PROXY TCP6 2001:db8::1 ::1 1 65535\r\n");
  ASSERT_EQ(State::kWhole, six.state);
  EXPECT_EQ("[2001:db8::1]:1", six.addresses->source.text());
}

TEST(ProxyHeaderV1, UnknownIsTakenWithWhateverFollows) {
  for (const char* text : {"PROXY UNKNOWN\r\n", "PROXY UNKNOWN a b c\r\n",
                           "PROXY UNKNOWN ffff::1 ffff::1 65535 65535\r\n"}) {
    const ProxyHeader header = read_proxy_header(text);
    EXPECT_EQ(State::kWhole, header.state) << text;
    EXPECT_FALSE(header.addresses) << text;
  }
}

TEST(ProxyHeaderV1, WhatIsNoneIsRefused) {
  for (const char* rest :
       {"", "TCP4", "TCP4 1.2.3.4", "TCP4 1.2.3.4 5.6.7.8", "TCP4 1.2.3.4 5.6.7.8 1",
        "TCP4 1.2.3.4 5.6.7.8 1 2 3", "TCP4 1.2.3.4 5.6.7.8 1 65536", "TCP4 1.2.3.4 5.6.7.8 1 -2",
        "TCP4 1.2.3.4 5.6.7.8 1 2 ", "TCP4  1.2.3.4 5.6.7.8 1 2", "TCP4 1.2.3.400 5.6.7.8 1 2",
        "TCP4 ::1 ::1 1 2", "TCP6 1.2.3.4 5.6.7.8 1 2", "TCP4 1.2.3.4/8 5.6.7.8 1 2",
        "TCP4 1.2.3.4 5.6.7.8 01 2", "UDP4 1.2.3.4 5.6.7.8 1 2", "TCP5 1.2.3.4 5.6.7.8 1 2",
        "tcp4 1.2.3.4 5.6.7.8 1 2", "TCP4 1.2.3.4 5.6.7.8 1 2\n"})
    expect_wrong(std::string("PROXY ") + rest + "\r\n");
  expect_wrong(std::string("PROXY TCP4 1.2.3.4\0 5.6.7.8 1 2\r\n", 33));
  expect_wrong("PROXX TCP4 1.2.3.4 5.6.7.8 1 2\r\n");
  expect_wrong("GET / HTTP/1.1\r\n");
  expect_wrong("proxy TCP4 1.2.3.4 5.6.7.8 1 2\r\n");
}

TEST(ProxyHeaderV1, ALineHasAtMost107Bytes) {
  const std::string begin = "PROXY UNKNOWN ";
  const auto padded = [&](std::size_t size) {
    return begin + std::string(size - begin.size() - 2, 'x') + "\r\n";
  };
  EXPECT_EQ(State::kWhole, read_proxy_header(padded(107)).state);
  expect_wrong(padded(108));
}

TEST(ProxyHeaderV2, SaysWhoTheClientIs) {
  const ProxyHeader header = read_proxy_header(v2(0x21, 0x11, kFour) + "data");
  ASSERT_EQ(State::kWhole, header.state);
  EXPECT_EQ(28u, header.bytes);
  EXPECT_EQ("192.168.0.1:56324", header.addresses->source.text());
  EXPECT_EQ("192.168.0.11:443", header.addresses->destination.text());
}

TEST(ProxyHeaderV2, LocalUnknownAndUnixSayNobody) {
  for (const std::string& text : {v2(0x20, 0, ""), v2(0x20, 0x11, kFour), v2(0x20, 0x99, "rest"),
                                  v2(0x21, 0, ""), v2(0x21, 0x31, std::string(216, 'p'))}) {
    const ProxyHeader header = read_proxy_header(text);
    EXPECT_EQ(State::kWhole, header.state);
    EXPECT_EQ(text.size(), header.bytes);
    EXPECT_FALSE(header.addresses);
  }
}

TEST(ProxyHeaderV2, WhatIsNoneIsRefused) {
  expect_wrong(v2(0x11, 0x11, kFour));            // the version
  expect_wrong(v2(0x22, 0x11, kFour));            // the command
  expect_wrong(v2(0x21, 0x12, kFour));            // UDP
  expect_wrong(v2(0x21, 0x41, kFour));            // the family
  expect_wrong(v2(0x21, 0x11, kFour.substr(1)));  // no room for the addresses
  expect_wrong(v2(0x21, 0x21, kFour));            // the same, of IPv6
  expect_wrong(v2(0x21, 0x31, std::string(215, 'p')));
  expect_wrong(v2(0x21, 0x11, kFour + std::string(3000, 0)).substr(0, 16));  // too long
  expect_wrong(v2(0x21, 0x11, kFour + "\x01"));                              // a TLV, cut off
  expect_wrong(v2(0x21, 0x11, kFour + std::string("\x01\x00\x05h2", 5)));    // a longer one
  expect_wrong(kSignature + std::string("\x31", 1));  // seen at the first byte that says it
}

TEST(ProxyHeaderV2, ItsChecksumHasToBeRight) {
  // The sum of the header with zeros in its place, worked out by another implementation.
  std::string header = v2(0x21, 0x11, kFour + std::string("\x03\x00\x04\x00\x00\x00\x00", 7));
  std::uint32_t crc = ~0u;
  for (const char c : header) {
    crc ^= static_cast<std::uint8_t>(c);
    for (int i = 0; i < 8; ++i) crc = (crc & 1) != 0 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
  }
  crc = ~crc;
  for (int i = 0; i < 4; ++i)
    header[header.size() - 4 + i] = static_cast<char>(crc >> (24 - 8 * i));
  EXPECT_EQ(State::kWhole, read_proxy_header(header).state);
  header.back() = static_cast<char>(header.back() ^ 1);
  expect_wrong(header);
}

TEST(ProxyHeader, InPiecesIsTheSame) {
  for (const std::string& whole :
       {std::string("PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n"), v2(0x21, 0x11, kFour),
        v2(0x21, 0x11, kFour + std::string("\x04\x00\x02xx", 5))}) {
    for (std::size_t n = 0; n < whole.size(); ++n)
      EXPECT_EQ(State::kMore, read_proxy_header(whole.substr(0, n)).state) << n;
    EXPECT_EQ(State::kWhole, read_proxy_header(whole).state);
  }
}

TEST(ProxyHeader, WhatIsWrittenIsRead) {
  for (const auto version : {ProxyVersion::kV1, ProxyVersion::kV2}) {
    for (const auto& [from, to] :
         {std::pair{"1.2.3.4:5", "6.7.8.9:10"}, std::pair{"[2001:db8::1]:5", "[::1]:65535"}}) {
      const std::string text = proxy_header(version, {address(from), address(to)});
      const ProxyHeader header = read_proxy_header(text);
      ASSERT_EQ(State::kWhole, header.state) << text;
      EXPECT_EQ(text.size(), header.bytes);
      EXPECT_EQ(from, header.addresses->source.text());
      EXPECT_EQ(to, header.addresses->destination.text());
    }
    EXPECT_EQ(State::kWhole, read_proxy_header(local_proxy_header(version)).state);
    EXPECT_FALSE(read_proxy_header(proxy_header(version, {})).addresses);
  }
}

TEST(ProxyHeader, AMappedAddressIsWrittenAsIpv4) {
  const Address mapped = address("[::ffff:1.2.3.4]:5");
  EXPECT_EQ("PROXY TCP4 1.2.3.4 1.2.3.4 5 5\r\n",
            proxy_header(ProxyVersion::kV1, {mapped, mapped}));
  EXPECT_EQ(28u, proxy_header(ProxyVersion::kV2, {mapped, mapped}).size());
}

}  // namespace
}  // namespace clan::gateway
