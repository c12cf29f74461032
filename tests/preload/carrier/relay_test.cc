#include "carrier/relay.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "support/loopback.h"
#include "support/pattern.h"
#include "support/streams.h"

namespace clan::preload {
namespace {

// The program's end, the relay, and the stream's other end.
class CarrierRelay : public ::testing::Test {
 protected:
  CarrierRelay() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    program_ = ends[0];
    relay_.emplace(ends[1], std::move(streams_.server));
  }
  ~CarrierRelay() override { ::close(program_); }
  std::string read_program() const {
    std::string text(100, 0);
    const ssize_t n = ::recv(program_, text.data(), text.size(), 0);
    if (n < 0) return "<" + std::to_string(errno) + ">";
    text.resize(static_cast<std::size_t>(n));
    return text;
  }
  void write_program(std::string_view text) const {
    EXPECT_EQ(::send(program_, text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }

  test::StreamPair streams_;
  int program_ = -1;
  std::optional<Relay> relay_;
};

TEST_F(CarrierRelay, HandsOnBytesBothWays) {
  write_program("there");
  EXPECT_EQ(test::must(streams_.client.send(test::text("back"))), 4u);
  EXPECT_EQ(relay_->serve(), Relay::Turn::kWaits);
  EXPECT_EQ(read_program(), "back");
  EXPECT_EQ(test::receive_text(streams_.client), "there");
}

TEST_F(CarrierRelay, HandsOnWhatTheOtherHostHadSentBeforeItClosedWhenTheProgramWritesTooLate) {
  EXPECT_EQ(test::must(streams_.client.send(test::text("answer"))), 6u);
  streams_.client.close();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the end is told of
  write_program("too late");
  EXPECT_EQ(relay_->serve(), Relay::Turn::kOver);
  EXPECT_EQ(read_program(), "answer");
  EXPECT_EQ(read_program(), "");
}

TEST_F(CarrierRelay, ResetsAProgramThatWritesOnToAClosedEndAndDoesNotRead) {
  const std::vector<std::byte> block(65536, std::byte{'x'});
  for (int quiet = 0; quiet < 3; ++quiet) {
    if (const auto sent = streams_.client.try_send(block); sent.ok() && *sent > 0) quiet = 0;
    (void)relay_->serve();
  }
  streams_.client.close();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the end is told of
  const std::string much(65536, 'y');
  auto turn = Relay::Turn::kWaits;
  for (int i = 0; i < 100 && turn != Relay::Turn::kOver; ++i) {
    (void)::send(program_, much.data(), much.size(), MSG_NOSIGNAL);
    turn = relay_->serve();
  }
  EXPECT_EQ(turn, Relay::Turn::kOver);
}

TEST_F(CarrierRelay, HandsOnTheEndBehindAllBytes) {
  write_program("last");
  ::shutdown(program_, SHUT_WR);
  EXPECT_EQ(relay_->serve(), Relay::Turn::kWaits);
  EXPECT_EQ(test::receive_text(streams_.client), "last");
  EXPECT_EQ(test::receive_text(streams_.client), "");
  EXPECT_EQ(test::must(streams_.client.send(test::text("yours"))), 5u);
  EXPECT_TRUE(streams_.client.shutdown_send().ok());
  EXPECT_EQ(relay_->serve(), Relay::Turn::kOver);
  relay_.reset();
  EXPECT_EQ(read_program(), "yours");
  EXPECT_EQ(read_program(), "");
}

TEST_F(CarrierRelay, KeepsNoMoreThanItsBuffersForAnEndThatDoesNotRead) {
  const std::vector<std::byte> piece(64 * 1024);
  std::size_t taken = 0;
  constexpr std::size_t kMost = 16 << 20;
  for (bool more = true; more && taken < kMost;) {
    const auto n = streams_.client.try_send(piece);
    more = n.ok();
    taken += more ? *n : 0;
    while (relay_->serve() == Relay::Turn::kMore) more = true;
  }
  EXPECT_LT(taken, kMost);
}

TEST_F(CarrierRelay, ThatEndsTooSoonResetsTheOtherHost) {
  write_program("more");
  EXPECT_EQ(relay_->serve(), Relay::Turn::kWaits);
  relay_.reset();
  std::string said = test::receive_text(streams_.client);
  if (said == "more") said = test::receive_text(streams_.client);
  EXPECT_EQ(said, "<" + std::to_string(ECONNRESET) + ">");
}

TEST_F(CarrierRelay, WhoseStreamIsLostIsOver) {
  streams_.client.abort();
  Relay::Turn turn = Relay::Turn::kWaits;
  for (int i = 0; i < 1000 && turn != Relay::Turn::kOver; ++i) {
    turn = relay_->serve();
    ::usleep(1000);
  }
  EXPECT_EQ(turn, Relay::Turn::kOver);
}

TEST_F(CarrierRelay, AtTheEndOfTheProcessSendsWhatTheProgramHasSent) {
  write_program("last words");
  EXPECT_TRUE(relay_->finish());
  relay_.reset();
  EXPECT_EQ(test::receive_text(streams_.client), "last words");
  EXPECT_EQ(test::receive_text(streams_.client), "");
}

// The kernel's own way to say that bytes may be missing.
TEST(CarrierRelayOfTcp, ThatEndsTooSoonResetsTheProgram) {
  test::StreamPair streams;
  const auto [program, end] = test::tcp_ends();
  { const Relay relay(end, std::move(streams.server)); }
  char byte;
  EXPECT_EQ(::recv(program, &byte, 1, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
  ::close(program);
}

}  // namespace
}  // namespace clan::preload
