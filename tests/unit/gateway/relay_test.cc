#include "relay.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

namespace clan::gateway {
namespace {

constexpr std::size_t kBudget = 256 * 1024;

/// A socket of the gateway's, and the peer's end of it.
struct Pair {
  Socket own, peer;

  Pair() {
    int fds[2];
    EXPECT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds));
    own = Socket(fds[0]);
    peer = Socket(fds[1]);
  }
  std::string received() {
    std::string all;
    std::vector<std::byte> buffer(100'000);
    ssize_t n = 0;
    while ((n = peer.recv(buffer)) > 0)
      all.append(reinterpret_cast<const char*>(buffer.data()), static_cast<std::size_t>(n));
    ended = n == 0;
    return all;
  }
  bool ended = false;  // of what has been received
};

struct Relayed {
  Pair from, to;
  Direction way;
  std::vector<std::byte> buffer = std::vector<std::byte>(64 * 1024);

  Flow go(std::size_t budget = kBudget) { return pass(from.own, to.own, way, buffer, budget); }
};

TEST(Relay, PassesBytesThenTheEndOfThem) {
  Relayed r;
  EXPECT_EQ(5, r.from.peer.send(bytes_of("hello")));
  r.from.peer.shutdown_send();
  EXPECT_EQ(Flow::kWaits, r.go());
  EXPECT_EQ(Flow::kWaits, r.go());
  EXPECT_EQ("hello", r.to.received());
  EXPECT_TRUE(r.to.ended && r.way.closed);
  EXPECT_EQ(1, r.to.peer.send(bytes_of("x")));  // the other direction lives
}

TEST(Relay, AHeaderGoesFirst) {
  Relayed r;
  r.way.held = "header ";
  (void)r.from.peer.send(bytes_of("bytes"));
  r.go();
  EXPECT_EQ("header bytes", r.to.received());
  EXPECT_EQ(5u, r.way.bytes);
}

TEST(Relay, ASlowReaderHoldsUpItsSenderAndLosesNothing) {
  Relayed r;
  std::string sent, got;
  for (int i = 0; !r.way.blocked; ++i) {
    const std::string piece(10'000, static_cast<char>('a' + i % 26));
    const ssize_t n = r.from.peer.send(bytes_of(piece));
    if (n > 0) sent += piece.substr(0, static_cast<std::size_t>(n));
    ASSERT_EQ(Flow::kWaits, r.go());
  }
  const std::size_t held = r.way.held.size();
  EXPECT_LE(held, r.buffer.size());
  std::string more(50'000, 'z');
  more.resize(static_cast<std::size_t>(std::max<ssize_t>(r.from.peer.send(bytes_of(more)), 0)));
  r.from.peer.shutdown_send();
  EXPECT_EQ(Flow::kWaits, r.go());  // nothing more is read meanwhile
  EXPECT_EQ(held, r.way.held.size());
  while (!r.to.ended) {
    got += r.to.received();
    (void)r.go();
  }
  EXPECT_EQ(sent + more, got);
  EXPECT_TRUE(r.way.closed);
}

TEST(Relay, ABusyDirectionStopsAtItsBudget) {
  Relayed r;
  std::string sent(150'000, 'x');
  sent.resize(static_cast<std::size_t>(r.from.peer.send(bytes_of(sent))));
  ASSERT_GT(sent.size(), 100'000u);
  EXPECT_EQ(Flow::kMore, r.go(64 * 1024));
  EXPECT_EQ(64u * 1024, r.way.bytes);
}

TEST(Relay, AnEndThatHasGoneBreaksIt) {
  Relayed r;
  (void)r.from.peer.send(bytes_of("x"));
  r.to.peer.close();
  EXPECT_EQ(Flow::kBroken, r.go());
}

/// Two native ends of one process.
struct Streams {
  Context context = *Context::create();
  Listener listener = *Listener::create(context, "");
  std::unique_ptr<Stream> own, peer;

  Streams() {
    own = std::make_unique<Stream>(*Stream::connect(context, listener.address()));
    peer = std::make_unique<Stream>(*listener.accept());
  }
};

TEST(Relay, PassesBytesIntoAStreamThenTheEndOfThem) {
  Pair from;
  Streams streams;
  Direction way;
  std::vector<std::byte> buffer(64 * 1024);
  NativeEnd to(*streams.own);
  way.held = "header ";
  (void)from.peer.send(bytes_of("bytes"));
  from.peer.shutdown_send();
  (void)pass(from.own, to, way, buffer, kBudget);
  (void)pass(from.own, to, way, buffer, kBudget);
  std::string got;
  for (;;) {
    std::vector<std::byte> some(100);
    const auto n = streams.peer->recv(some);
    ASSERT_TRUE(n);
    if (*n == 0) break;
    got.append(reinterpret_cast<const char*>(some.data()), *n);
  }
  EXPECT_EQ("header bytes", got);
  EXPECT_TRUE(way.closed);
}

TEST(Relay, AFullStreamBlocksUntilItsReaderHasRead) {
  Pair from;
  Streams streams;
  Direction way;
  std::vector<std::byte> buffer(64 * 1024), some(100'000);
  NativeEnd to(*streams.own);
  const std::string piece(50'000, 'x');
  std::size_t sent = 0, got = 0;
  while (!way.blocked) {
    const ssize_t n = from.peer.send(bytes_of(piece));
    if (n > 0) sent += static_cast<std::size_t>(n);
    ASSERT_EQ(Flow::kWaits, pass(from.own, to, way, buffer, 10 * kBudget));
  }
  from.peer.shutdown_send();
  for (;;) {
    const auto n = streams.peer->recv(some);
    ASSERT_TRUE(n);
    if (*n == 0) break;
    got += *n;
    (void)pass(from.own, to, way, buffer, 10 * kBudget);
  }
  EXPECT_EQ(sent, got);
}

TEST(Relay, PassesBytesOutOfAStreamThenTheEndOfThem) {
  Pair to;
  Streams streams;
  Direction way;
  NativeEnd from(*streams.own);
  ASSERT_TRUE(streams.peer->send(bytes_of("hello")));
  ASSERT_TRUE(streams.peer->shutdown_send());
  while (!way.closed) (void)pass(from, to.own, way, {}, kBudget);
  EXPECT_EQ("hello", to.received());
  EXPECT_TRUE(to.ended);
}

// It answers and closes: its client gets all of that, and not a reset.
TEST(Relay, AStreamThatHasClosedBreaksItOnlyWhenItIsSentTo) {
  Pair client;
  Streams streams;
  Direction in, out;
  std::vector<std::byte> buffer(64 * 1024);
  NativeEnd server(*streams.own);
  ASSERT_TRUE(streams.peer->send(bytes_of("answer")));
  streams.peer.reset();
  while (!out.closed) {
    ASSERT_EQ(Flow::kWaits, pass(client.own, server, in, buffer, kBudget));
    ASSERT_NE(Flow::kBroken, pass(server, client.own, out, buffer, kBudget));
  }
  EXPECT_EQ("answer", client.received());
  EXPECT_TRUE(client.ended);
  Flow flow = Flow::kWaits;
  for (int k = 0; k < 5000 && flow != Flow::kBroken; ++k, usleep(1000)) {
    (void)client.peer.send(bytes_of("x"));
    flow = pass(client.own, server, in, buffer, kBudget);
  }
  EXPECT_EQ(Flow::kBroken, flow);
}

TEST(Relay, AStreamThatIsAbortedBreaksIt) {
  Pair to;
  Streams streams;
  Direction way;
  NativeEnd from(*streams.own);
  streams.peer->abort();
  (void)streams.own->wait_readable();
  EXPECT_EQ(Flow::kBroken, pass(from, to.own, way, {}, kBudget));
}

}  // namespace
}  // namespace clan::gateway
