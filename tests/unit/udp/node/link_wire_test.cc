#include "link/udp/node/link_wire.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "support/pattern.h"

namespace clan::udp {
namespace {

LinkHeader filled(LinkMessageType type) {
  LinkHeader h;
  h.type = type;
  h.err = 111;
  h.aperture = 7;
  h.generation = 9;
  h.key_image = 0x1122334455667788;
  h.offset = 1ull << 40;
  h.length = 1ull << 41;
  h.request = 12345;
  h.after = 67;
  return h;
}
std::size_t write(const LinkHeader& h, std::array<std::byte, kMostHeader>& out) {
  return write_link_header(out, h);
}

TEST(LinkWire, ReadsTheHeadersThatItWrites) {
  for (int type = 1; type <= static_cast<int>(LinkMessageType::kOob); ++type) {
    const LinkHeader sent = filled(static_cast<LinkMessageType>(type));
    std::array<std::byte, kMostHeader> bytes, again;
    const std::size_t n = write(sent, bytes);
    ASSERT_GT(n, 0u);
    LinkHeader got;
    ASSERT_TRUE(read_link_header(std::span(bytes).first(n), &got)) << type;
    EXPECT_EQ(got.type, sent.type);
    ASSERT_EQ(write(got, again), n) << type;
    EXPECT_TRUE(
        std::equal(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n), again.begin()))
        << type;
  }
}

TEST(LinkWire, CarriesAllOfAReadsFields) {
  std::array<std::byte, kMostHeader> bytes;
  const LinkHeader sent = filled(LinkMessageType::kRead);
  LinkHeader got;
  ASSERT_TRUE(read_link_header(std::span(bytes).first(write(sent, bytes)), &got));
  EXPECT_EQ(got.aperture, sent.aperture);
  EXPECT_EQ(got.generation, sent.generation);
  EXPECT_EQ(got.key_image, sent.key_image);
  EXPECT_EQ(got.offset, sent.offset);
  EXPECT_EQ(got.length, sent.length);
  EXPECT_EQ(got.request, sent.request);
  EXPECT_EQ(got.after, sent.after);
}

TEST(LinkWire, RefusesHeadersCutShortTooLongOrOfNoType) {
  for (int type = 1; type <= static_cast<int>(LinkMessageType::kOob); ++type) {
    std::array<std::byte, kMostHeader> bytes{};
    const std::size_t n = write(filled(static_cast<LinkMessageType>(type)), bytes);
    LinkHeader h;
    for (std::size_t cut = 0; cut < n; ++cut)
      EXPECT_FALSE(read_link_header(std::span(bytes).first(cut), &h));
    EXPECT_FALSE(read_link_header(std::span(bytes).first(n + 1), &h));
  }
  for (const int type : {0, static_cast<int>(LinkMessageType::kOob) + 1, 255}) {
    const std::byte byte{static_cast<unsigned char>(type)};
    LinkHeader h;
    EXPECT_FALSE(read_link_header({&byte, 1}, &h)) << type;
  }
}

TEST(LinkWire, ReadsTheGreetingThatItWrites) {
  const Greeting sent{42, 1000, 4321, 77, 4790, "a service"};
  std::array<std::byte, kMostGreeting> bytes;
  const std::size_t n = write_greeting(bytes, sent);
  Greeting got;
  ASSERT_TRUE(read_greeting(std::span(bytes).first(n), &got));
  EXPECT_EQ(got.node, sent.node);
  EXPECT_EQ(got.uid, sent.uid);
  EXPECT_EQ(got.pid, sent.pid);
  EXPECT_EQ(got.endpoint, sent.endpoint);
  EXPECT_EQ(got.port, sent.port);
  EXPECT_EQ(got.service, sent.service);
  for (std::size_t cut = 0; cut < n; ++cut)
    EXPECT_FALSE(read_greeting(std::span(bytes).first(cut), &got)) << cut;
  EXPECT_FALSE(read_greeting(std::span(bytes).first(n + 1), &got));
}

// Its receiver would show the head of a record before the rest.
TEST(LinkWire, RefusesTheGreetingOfALinkThatDoesNotStoreAPutsFirstWordLast) {
  std::array<std::byte, kMostGreeting> bytes;
  const std::size_t n = write_greeting(bytes, {42, 1000, 4321, 77, 4790, "a service"});
  Greeting got;
  ASSERT_TRUE(read_greeting(std::span(bytes).first(n), &got));
  std::memcpy(bytes.data(), "CLAN", 4);
  EXPECT_FALSE(read_greeting(std::span(bytes).first(n), &got));
}

TEST(LinkWire, RefusesAGreetingOfNobodyOrWithAZeroInItsName) {
  std::array<std::byte, kMostGreeting> bytes;
  Greeting got;
  Greeting nobody{0, 1, 2, 3, 4, "x"};
  EXPECT_FALSE(read_greeting(std::span(bytes).first(write_greeting(bytes, nobody)), &got));
  Greeting zero{1, 1, 2, 3, 4, std::string("a\0b", 3)};
  EXPECT_FALSE(read_greeting(std::span(bytes).first(write_greeting(bytes, zero)), &got));
  Greeting long_name{1, 1, 2, 3, 4, std::string(256, 'x')};
  EXPECT_EQ(write_greeting(bytes, long_name), 0u);
}

}  // namespace
}  // namespace clan::udp
