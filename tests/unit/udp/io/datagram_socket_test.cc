// One socket of the kernel, on loopback.
#include "link/udp/io/datagram_socket.h"

#include <gtest/gtest.h>
#include <poll.h>

#include "link/udp/io/socket_io.h"

namespace clan::udp {
namespace {

using Family = DatagramSocket::Family;

constexpr int kBuffer = 1 << 18;

SocketAddress address(const std::string& text) {
  auto parsed = parse_address(text.c_str());
  EXPECT_TRUE(parsed.ok()) << text;
  return parsed.ok() ? *parsed : SocketAddress{};
}

DatagramSocket bound(const char* text) {
  auto made = DatagramSocket::open(Family::kIpv4, kBuffer);
  EXPECT_TRUE(made.ok());
  EXPECT_TRUE(made->bind(address(text)).ok());
  return std::move(*made);
}

std::vector<std::byte> text(const char* from) {
  const auto* p = reinterpret_cast<const std::byte*>(from);
  return {p, p + std::strlen(from)};
}

// The next datagram, or "": none within a moment.
std::string next(DatagramSocket& socket, SocketAddress* from = nullptr, int ms = 2'000) {
  pollfd fd{socket.fd(), POLLIN, 0};
  if (::poll(&fd, 1, ms) != 1) return "";
  std::vector<std::byte> room(65'536);
  Arrival got;
  if (!socket.receive(room, &got)) return "";
  if (from != nullptr) *from = got.from;
  return {reinterpret_cast<const char*>(room.data()), got.bytes.size()};
}

TEST(DatagramSocket, CarriesDatagramsAndSaysWhereTheyCameFrom) {
  auto a = bound("127.0.0.1:0"), b = bound("127.0.0.1:0");
  const SocketAddress to = *b.local_address();
  EXPECT_EQ(a.send(&to, text("one"), 3), DatagramSocket::Sent::kSent);
  SocketAddress from;
  EXPECT_EQ(next(b, &from), "one");
  EXPECT_TRUE(from == *a.local_address());
  EXPECT_FALSE(a.peer_address().has_value());
}

TEST(DatagramSocket, ConnectedItHearsItsPeerAlone) {
  auto a = bound("127.0.0.1:0"), b = bound("127.0.0.1:0"), stranger = bound("127.0.0.1:0");
  const SocketAddress to = *a.local_address();
  ASSERT_TRUE(a.connect(*b.local_address()).ok());
  EXPECT_TRUE(a.peer_address() == *b.local_address());
  EXPECT_EQ(stranger.send(&to, text("no"), 2), DatagramSocket::Sent::kSent);
  EXPECT_EQ(b.send(&to, text("yes"), 3), DatagramSocket::Sent::kSent);
  EXPECT_EQ(next(a), "yes");
  EXPECT_EQ(next(a, nullptr, 10), "");
  EXPECT_EQ(a.send(nullptr, text("back"), 4), DatagramSocket::Sent::kSent);
  EXPECT_EQ(next(b), "back");
}

TEST(DatagramSocket, PlainBytesAreWholeOrNotTaken) {
  auto a = bound("127.0.0.1:0"), b = bound("127.0.0.1:0");
  ASSERT_TRUE(a.connect(*b.local_address()).ok());
  std::byte room[4];
  Arrival got;
  EXPECT_FALSE(a.receive_plain(room, &got));
  const SocketAddress to = *a.local_address();
  for (const char* sent : {"long one", "four"}) {
    ASSERT_EQ(b.send(&to, text(sent), std::strlen(sent)), DatagramSocket::Sent::kSent);
    pollfd fd{a.fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&fd, 1, 2'000), 1);
    ASSERT_TRUE(a.receive_plain(room, &got));
    EXPECT_EQ(got.bytes.size(), std::strlen(sent) == 4 ? 4u : 0u);
  }
  EXPECT_EQ(std::memcmp(room, "four", 4), 0);
}

TEST(DatagramSocket, WhatHadComeBeforeItWasConnectedIsStillThere) {
  auto a = bound("127.0.0.1:0"), b = bound("127.0.0.1:0"), other = bound("127.0.0.1:0");
  const SocketAddress to = *a.local_address();
  EXPECT_EQ(other.send(&to, text("early"), 5), DatagramSocket::Sent::kSent);
  ASSERT_TRUE(a.connect(*b.local_address()).ok());
  SocketAddress from;
  EXPECT_EQ(next(a, &from), "early");
  EXPECT_TRUE(from == *other.local_address());
}

TEST(DatagramSocket, APortIsSharedOnlyWhileBothSaySo) {
  auto first = bound("127.0.0.1:0");
  const SocketAddress at = *first.local_address();
  auto bind = [&](bool ours, bool theirs) {
    auto made = DatagramSocket::open(Family::kIpv4, kBuffer);
    EXPECT_TRUE(made.ok() && first.share_port(ours) && made->share_port(theirs));
    return made->bind(at).ok();
  };
  EXPECT_FALSE(bind(false, false));
  EXPECT_FALSE(bind(false, true));
  EXPECT_FALSE(bind(true, false));
  EXPECT_TRUE(bind(true, true));
  EXPECT_FALSE(bind(false, true)) << "taken back";
}

TEST(DatagramSocket, ARefusalByThePeersHostIsToldConnectedOrNot) {
  for (bool connected : {false, true}) {
    auto a = bound("127.0.0.1:0");
    SocketAddress closed;
    {
      auto gone = bound("127.0.0.1:0");
      closed = *gone.local_address();
    }
    if (connected) {
      ASSERT_TRUE(a.connect(closed).ok());
    }
    EXPECT_EQ(a.send(connected ? nullptr : &closed, text("x"), 1), DatagramSocket::Sent::kSent);
    std::vector<std::byte> room(100);
    Arrival got;
    EXPECT_FALSE(a.receive(room, &got));
    SocketAddress refused;
    ASSERT_TRUE(a.next_refusal(&refused)) << connected;
    EXPECT_TRUE(refused == closed);
    EXPECT_FALSE(a.next_refusal(&refused));
  }
}

// By a socket of IPv4, and by one of IPv6 that takes both.
TEST(DatagramSocket, SaysToWhichAddressAPacketCameAndAnswersFromThere) {
  for (Family family : {Family::kIpv4, Family::kBoth}) {
    auto made = DatagramSocket::open(family, kBuffer);
    ASSERT_TRUE(made.ok());
    DatagramSocket& a = *made;
    SocketAddress any = address("0.0.0.0:0");
    ASSERT_TRUE(a.bind(any).ok() && a.tell_destination() && a.use_gro(true));
    auto b = bound("127.0.0.1:0");
    const std::string port = ":" + std::to_string(a.local_address()->port);
    for (const char* host : {"127.0.0.1", "127.0.0.9"}) {
      const SocketAddress to = address(host + port), back = *b.local_address();
      ASSERT_EQ(b.send(&to, text("question"), 8), DatagramSocket::Sent::kSent);
      std::vector<std::byte> room(100);
      Arrival got;
      ASSERT_TRUE(a.receive(room, &got));
      EXPECT_TRUE(got.at.ip == to.ip) << to_string(got.at) << " instead of " << host;
      for (std::size_t segment : {12u, 6u}) {  // alone, and a train
        ASSERT_EQ(a.send(&back, text("answeranswer"), segment, &got.at),
                  DatagramSocket::Sent::kSent);
        SocketAddress from;
        for (std::size_t at = 0; at < 12; at += segment)
          EXPECT_EQ(next(b, &from), std::string("answeranswer").substr(0, segment));
        EXPECT_TRUE(from == to) << to_string(from) << " instead of " << to_string(to);
      }
    }
  }
}

TEST(DatagramSocket, ByIpv6ItSaysSoTooAndASourceThatIsNoneOfOursIsLeftToTheRoutes) {
  auto a = DatagramSocket::open(Family::kBoth, kBuffer),
       b = DatagramSocket::open(Family::kIpv6, kBuffer);
  ASSERT_TRUE(a.ok() && b.ok());
  if (!b->bind(address("[::1]:0")).ok()) GTEST_SKIP() << "no IPv6 here";
  ASSERT_TRUE(a->bind(address("[::]:0")).ok() && a->tell_destination());
  const SocketAddress to = address("[::1]:" + std::to_string(a->local_address()->port));
  const SocketAddress back = *b->local_address(), none = address("[2001:db8::1]:0");
  ASSERT_EQ(b->send(&to, text("question"), 8), DatagramSocket::Sent::kSent);
  std::vector<std::byte> room(100);
  Arrival got;
  ASSERT_TRUE(a->receive(room, &got));
  EXPECT_TRUE(got.at.ip == to.ip) << to_string(got.at);
  for (const SocketAddress& source : {got.at, none}) {
    ASSERT_EQ(a->send(&back, text("answer"), 6, &source), DatagramSocket::Sent::kSent);
    SocketAddress from;
    EXPECT_EQ(next(*b, &from), "answer");
    EXPECT_TRUE(from == to) << to_string(from);
  }
}

TEST(DatagramSocket, ASourceThatIsNoneOfOursIsLeftToTheRoutes) {
  for (Family family : {Family::kIpv4, Family::kBoth}) {
    auto made = DatagramSocket::open(family, kBuffer);
    ASSERT_TRUE(made.ok() && made->bind(address("0.0.0.0:0")).ok());
    auto b = bound("127.0.0.1:0");
    const SocketAddress to = *b.local_address(), none = address("192.0.2.1:0");
    for (std::size_t segment : {4u, 2u}) {
      ASSERT_EQ(made->send(&to, text("text"), segment, &none), DatagramSocket::Sent::kSent);
      SocketAddress from;
      for (std::size_t at = 0; at < 4; at += segment) EXPECT_NE(next(b, &from), "");
      EXPECT_EQ(to_string(from), "127.0.0.1:" + std::to_string(made->local_address()->port));
    }
  }
}

// A socket that learns where packets came to has room for what precedes the error.
TEST(DatagramSocket, ARefusalIsToldWhereDestinationsAreToo) {
  for (Family family : {Family::kIpv4, Family::kBoth}) {
    auto a = DatagramSocket::open(family, kBuffer);
    ASSERT_TRUE(a.ok() && a->bind(address("0.0.0.0:0")).ok() && a->tell_destination());
    const SocketAddress closed = *bound("127.0.0.1:0").local_address();
    EXPECT_EQ(a->send(&closed, text("x"), 1), DatagramSocket::Sent::kSent);
    std::vector<std::byte> room(100);
    Arrival got;
    EXPECT_FALSE(a->receive(room, &got));
    SocketAddress refused;
    ASSERT_TRUE(a->next_refusal(&refused));
    EXPECT_TRUE(refused == closed);
  }
}

TEST(DatagramSocket, PacketsBehindAnErrorAreReceivedAtOnce) {
  auto a = bound("127.0.0.1:0"), b = bound("127.0.0.1:0");
  const SocketAddress to = *a.local_address();
  SocketAddress closed;
  {
    auto gone = bound("127.0.0.1:0");
    closed = *gone.local_address();
  }
  EXPECT_EQ(a.send(&closed, text("x"), 1), DatagramSocket::Sent::kSent);
  EXPECT_EQ(b.send(&to, text("behind"), 6), DatagramSocket::Sent::kSent);
  EXPECT_EQ(next(a), "behind");
}

TEST(DatagramSocket, TwoOfAThreadAreInTheSameNetwork) {
  auto a = bound("127.0.0.1:0"), b = bound("127.0.0.1:0");
  EXPECT_TRUE(same_network(a.fd(), b.fd()));
}

}  // namespace
}  // namespace clan::udp
