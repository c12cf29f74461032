// The transport over real UDP sockets on loopback.
#include "link/udp/socket_io.h"

#include <gtest/gtest.h>
#include <poll.h>

#include "base/random.h"
#include "clan/clock.h"
#include "support/pattern.h"

namespace clan::udp {
namespace {

using test::is_pattern;
using test::pattern;

struct End final : EndpointSink {
  std::unique_ptr<SocketIo> io;
  std::unique_ptr<Endpoint> endpoint;
  std::unique_ptr<PacketPump> pump;
  Connection* connection = nullptr;
  std::vector<std::byte> memory;
  std::uint64_t placed = 0, messages = 0, wrong = 0, sent = 0;
  bool down = false;

  bool open(const SocketIo::Options& options) {
    SocketAddress local;
    auto made = SocketIo::open(local, options);
    if (!made) return false;
    io = std::move(*made);
    Options o;
    o.packet_window = io->packets_of_room();
    endpoint = std::make_unique<Endpoint>(o, *this, random_u64, nullptr);
    pump = std::make_unique<PacketPump>(*endpoint, *io);
    memory.resize(4 << 20);
    return true;
  }
  int on_request(const SocketAddress&, std::span<const std::byte>, std::span<std::byte>,
                 std::size_t*) override {
    return 0;
  }
  void on_established(Connection& c, std::span<const std::byte>) override { connection = &c; }
  bool on_fragment(Connection&, std::uint8_t channel, std::span<const std::byte>, std::uint32_t,
                   std::uint32_t offset, std::span<const std::byte> bytes) override {
    if (channel != 3) return false;
    std::copy(bytes.begin(), bytes.end(), memory.begin() + offset);
    placed += bytes.size();
    return true;
  }
  void on_message(Connection&, std::uint8_t channel, std::span<const std::byte>, std::uint32_t total,
                  std::span<const std::byte> payload) override {
    const bool right = channel == 3 ? is_pattern(std::span<const std::byte>(memory).first(total), messages, 0)
                                    : is_pattern(payload, messages, 0) && payload.size() == total;
    wrong += right ? 0 : 1;
    ++messages;
  }
  void on_sent(Connection&, std::uint8_t, std::uint64_t) override { ++sent; }
  void on_down(Connection&, int) override { down = true; }
};

class SocketIoTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    SocketIo::Options options;
    options.segment_offload = GetParam();
    ASSERT_TRUE(a_.open(options));
    ASSERT_TRUE(b_.open(options));
    auto to = parse_address(("127.0.0.1:" + std::to_string(b_.io->local_address().port)).c_str());
    ASSERT_TRUE(to.ok());
    if (!a_.endpoint->connect(*to, {}, monotonic_ns())) FAIL();
    ASSERT_TRUE(run([&] { return a_.connection != nullptr && b_.connection != nullptr; }));
  }
  template <typename Done>
  bool run(Done&& done) {
    const std::uint64_t end = monotonic_ns() + 20 * kSecond;
    while (!done()) {
      const std::uint64_t now = monotonic_ns();
      if (now > end) return false;
      const bool some_a = a_.pump->run(now), some_b = b_.pump->run(now);
      if (some_a || some_b) continue;
      pollfd fds[2] = {{a_.io->descriptor(), POLLIN, 0}, {b_.io->descriptor(), POLLIN, 0}};
      (void)::poll(fds, 2, 1);
    }
    return true;
  }
  End a_, b_;
};

INSTANTIATE_TEST_SUITE_P(Offload, SocketIoTest, testing::Bool(),
                         [](const auto& which) { return which.param ? "WithGso" : "WithoutGso"; });

TEST_P(SocketIoTest, SmallMessagesComeWholeAndInOrder) {
  for (std::uint64_t i = 0; i < 2000; ++i) {
    auto bytes = pattern(i % 700, i);
    ASSERT_EQ(a_.endpoint->send(*a_.connection, 0, {{}, bytes}), 0);
    if (i % 50 == 0) {
      ASSERT_TRUE(run([&] { return a_.connection->queued_bytes(0) == 0; }));
    }
  }
  ASSERT_TRUE(run([&] { return b_.messages == 2000; }));
  EXPECT_EQ(b_.wrong, 0u);
}

TEST_P(SocketIoTest, BulkIsPlacedOnceAndAcknowledged) {
  for (std::uint64_t i = 0; i < 20; ++i) {
    auto bytes = pattern(3'000'000 + i, i);
    ASSERT_EQ(a_.endpoint->send(*a_.connection, 3, {{}, bytes, false, true, i}), 0);
    ASSERT_TRUE(run([&] { return a_.sent == i + 1 && b_.messages == i + 1; }));
  }
  EXPECT_EQ(b_.wrong, 0u);
  EXPECT_EQ(b_.placed, 20 * 3'000'000u + 190);
  EXPECT_GT(a_.connection->mtu().current(), 16'000u) << "loopback takes packets of 64 KB";
}

TEST_P(SocketIoTest, ClosingIsToldToBoth) {
  a_.endpoint->close(*a_.connection, 0, monotonic_ns());
  EXPECT_TRUE(run([&] { return a_.down && b_.down; }));
}

}  // namespace
}  // namespace clan::udp
