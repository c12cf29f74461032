// The transport over real UDP sockets on loopback.
#include "link/udp/io/socket_io.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <functional>
#include <future>
#include <iterator>
#include <thread>

#include "base/random.h"
#include "clan/detail/clock.h"
#include "support/pattern.h"

namespace clan::udp {
namespace {

using test::is_pattern;
using test::pattern;

struct End final : EndpointSink, MessageSink {
  std::unique_ptr<SocketIo> io;
  std::unique_ptr<Endpoint> endpoint;
  std::unique_ptr<PacketPump> pump;
  Connection* connection = nullptr;
  std::vector<std::byte> memory;
  std::uint64_t placed = 0, messages = 0, wrong = 0, sent = 0;
  std::uint32_t largest_packet = kLargestPacket;
  bool down = false;
  int err = 0;

  bool open(const SocketIo::Options& options, const SocketAddress& local = {}) {
    auto made = SocketIo::open(local, options);
    if (!made) return false;
    io = std::move(*made);
    Options o;
    o.packet_window = io->packets_of_room();
    o.largest_packet = largest_packet;
    endpoint = std::make_unique<Endpoint>(o, *this, random_u64, nullptr);
    pump = std::make_unique<PacketPump>(*endpoint, *io);
    memory.resize(4 << 20);
    return true;
  }
  int on_request(const SocketAddress&, std::span<const std::byte>, std::span<std::byte>,
                 std::size_t*) override {
    return 0;
  }
  void on_established(Connection& c, std::span<const std::byte>) override {
    connection = &c;
    c.user = this;
  }
  bool on_fragment(std::uint8_t channel, std::span<const std::byte>, std::uint32_t,
                   std::uint32_t offset, std::span<const std::byte> bytes) override {
    if (channel != 3) return false;
    std::copy(bytes.begin(), bytes.end(), memory.begin() + offset);
    placed += bytes.size();
    return true;
  }
  void on_message(std::uint8_t channel, std::span<const std::byte>, std::uint32_t total,
                  std::span<const std::byte> payload) override {
    const bool right =
        channel == 3 ? is_pattern(std::span<const std::byte>(memory).first(total), messages, 0)
                     : is_pattern(payload, messages, 0) && payload.size() == total;
    wrong += right ? 0 : 1;
    ++messages;
  }
  void on_sent(std::uint8_t, std::uint64_t) override { ++sent; }
  void on_down(Connection&, int why) override {
    down = true;
    err = why;
  }
};

/// Whether sendmsg() is asked to cut the bytes into packets. The message is that of a thread which
/// waits in the call; ThreadSanitizer does not see that.
__attribute__((noinline, no_sanitize("thread"))) bool is_train(const msghdr& m) {
  for (const cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr;
       c = CMSG_NXTHDR(const_cast<msghdr*>(&m), const_cast<cmsghdr*>(c))) {
    constexpr int kUdpSegment = 103;
    if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == kUdpSegment) return true;
  }
  return false;
}

/// Calls `f` in a thread whose trains the kernel refuses with `err`. False: it cannot, here.
bool where_trains_are_refused(int err, const std::function<void()>& f) {
  std::promise<int> listener;
  std::thread thread([&] {
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendmsg, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{std::size(filter), filter};
    (void)::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    const long fd =
        ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    listener.set_value(static_cast<int>(fd));
    if (fd >= 0) f();
  });
  const Fd calls(listener.get_future().get());
  for (pollfd fd{calls.get(), POLLIN, 0}; calls && ::poll(&fd, 1, -1) == 1;) {
    if ((fd.revents & POLLIN) == 0) break;  // the thread has ended
    seccomp_notif call{};
    if (::ioctl(calls.get(), SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) continue;
    seccomp_notif_resp answer{};
    answer.id = call.id;
    if (is_train(*reinterpret_cast<const msghdr*>(call.data.args[1]))) {
      answer.error = -err;
    } else {
      answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    }
    (void)::ioctl(calls.get(), SECCOMP_IOCTL_NOTIF_SEND, &answer);
  }
  thread.join();
  return static_cast<bool>(calls);
}

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
  template <typename Done>
  bool run_alone(Done&& done) {
    const std::uint64_t end = monotonic_ns() + 20 * kSecond;
    for (std::uint64_t now = 0; !done(); now = monotonic_ns()) {
      if (now > end) return false;
      if (a_.pump->run(monotonic_ns())) continue;
      pollfd fd{a_.io->descriptor(), POLLIN, 0};
      (void)::poll(&fd, 1, 1);
    }
    return true;
  }
  End a_, b_;
};

INSTANTIATE_TEST_SUITE_P(Offload, SocketIoTest, testing::Bool(),
                         [](const auto& which) { return which.param ? "WithGso" : "WithoutGso"; });

TEST_P(SocketIoTest, ADescriptorThatIsNotArmedShowsWhatHasComeOnceItIs) {
  const auto shows = [&] {
    pollfd fd{b_.io->descriptor(), POLLIN, 0};
    return ::poll(&fd, 1, 0) == 1;
  };
  const auto send = [&](std::uint64_t number) {
    const auto bytes = pattern(100, number);
    return a_.endpoint->send(*a_.connection, 0, {{}, bytes}) == 0 && a_.pump->send(monotonic_ns());
  };
  ASSERT_TRUE(run([&] { return a_.connection->under_way() == 0; }));
  ASSERT_TRUE(b_.io->arm(false));
  for (std::uint64_t i = 0; i < 300; ++i) {  // it makes its second socket meanwhile
    ASSERT_TRUE(send(i));
    EXPECT_FALSE(shows());
    const std::uint64_t end = monotonic_ns() + 20 * kSecond;
    while (b_.messages <= i && monotonic_ns() < end) (void)b_.pump->run(monotonic_ns());
    ASSERT_EQ(b_.messages, i + 1);
    (void)a_.pump->run(monotonic_ns());
  }
  ASSERT_TRUE(send(300));
  EXPECT_FALSE(shows());
  ASSERT_TRUE(b_.io->arm(true));
  EXPECT_TRUE(shows());
  ASSERT_TRUE(run([&] { return b_.messages == 301; }));
  EXPECT_EQ(b_.wrong, 0u);
}

// A dozen full packets ask for an acknowledgement at once, by a PING.
TEST_P(SocketIoTest, ALookThatFindsSomethingLeavesTheAcknowledgementToTheAnswer) {
  constexpr std::uint64_t kMessages = 12;
  ASSERT_TRUE(run([&] { return a_.connection->under_way() == 0; }));
  const auto send = [](End& from, std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t i = first; i < first + count; ++i) {
      const auto bytes = pattern(1100, i);
      if (from.endpoint->send(*from.connection, 0, {{}, bytes}) != 0) return false;
    }
    return from.pump->send(monotonic_ns());
  };
  const auto hear = [](End& end, std::uint64_t messages) {
    const std::uint64_t until = monotonic_ns() + 20 * kSecond;
    while (end.messages < messages && monotonic_ns() < until) (void)end.pump->look(monotonic_ns());
    return end.messages == messages;
  };
  unsigned silent = 0, acknowledged = 0;
  for (std::uint64_t round = 0; round < 20; ++round) {
    ASSERT_TRUE(send(a_, round * kMessages, kMessages));
    const std::uint64_t packets = b_.connection->counters().packets_sent;
    ASSERT_TRUE(hear(b_, (round + 1) * kMessages));
    silent += b_.connection->counters().packets_sent == packets ? 1 : 0;
    ASSERT_TRUE(send(b_, round, 1));
    ASSERT_TRUE(hear(a_, round + 1));
    acknowledged += a_.connection->under_way() == 0 ? 1 : 0;
  }
  EXPECT_GE(silent, 15u) << "of 20; a packet may have come late";
  EXPECT_GE(acknowledged, 15u);
  EXPECT_EQ(a_.wrong + b_.wrong, 0u);
  // Nothing more comes: now what is owed leaves.
  ASSERT_TRUE(send(a_, 20 * kMessages, kMessages));
  ASSERT_TRUE(hear(b_, 21 * kMessages));
  const std::uint64_t until = monotonic_ns() + 20 * kSecond;
  while (a_.connection->under_way() > 0 && monotonic_ns() < until) {
    (void)b_.pump->look(monotonic_ns());
    (void)a_.pump->look(monotonic_ns());
  }
  EXPECT_EQ(a_.connection->under_way(), 0u);
}

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

TEST_P(SocketIoTest, APeerWhoseProcessHasDiedIsKnownBySendingToIt) {
  b_.io.reset();  // as when a process ends: its port is nobody's, and it says no word
  const std::uint64_t begin = monotonic_ns();
  auto bytes = pattern(100, 1);
  ASSERT_EQ(a_.endpoint->send(*a_.connection, 0, {{}, bytes}), 0);
  ASSERT_TRUE(run_alone([&] { return a_.down; }));
  EXPECT_EQ(a_.err, ECONNRESET);
  EXPECT_LT(monotonic_ns() - begin, 10 * kSecond) << "by its host, not by its silence";
}

TEST_P(SocketIoTest, APeerThatAThreadSleepsForIsAskedSoonWhetherItLives) {
  b_.io.reset();
  const std::uint64_t begin = monotonic_ns();
  a_.endpoint->watch(*a_.connection, true, begin);
  ASSERT_TRUE(run_alone([&] { return a_.down; }));
  EXPECT_EQ(a_.err, ECONNRESET);
  EXPECT_LT(monotonic_ns() - begin, 9 * kSecond) << "an idle one is asked after 10 s";
}

TEST_P(SocketIoTest, ClosingIsToldToBoth) {
  a_.endpoint->close(*a_.connection, 0, monotonic_ns());
  EXPECT_TRUE(run([&] { return a_.down && b_.down; }));
}

// --- the second socket ---------------------------------------------------------------------------

SocketAddress on_loopback(std::uint16_t port, const char* host = "127.0.0.1") {
  auto parsed = parse_address((std::string(host) + ":" + std::to_string(port)).c_str());
  EXPECT_TRUE(parsed.ok());
  return parsed.ok() ? *parsed : SocketAddress{};
}

/// packets that give any peer the vote
constexpr int kMany = 2 * static_cast<int>(ConnectedPeerVote::kMost);

/// Ends on loopback that talk by turns.
class SecondSocketTest : public testing::Test {
 protected:
  End& add(std::uint16_t port = 0) {
    SocketAddress local;
    local.port = port;
    ends_.push_back(std::make_unique<End>());
    EXPECT_TRUE(ends_.back()->open({}, local));
    return *ends_.back();
  }
  static SocketAddress address_of(const End& end) {
    return on_loopback(end.io->local_address().port);
  }
  /// A connection of `from`; its peer's is `to.connection`.
  Connection* connect(End& from, End& to) {
    from.connection = to.connection = nullptr;
    EXPECT_NE(from.endpoint->connect(address_of(to), {}, monotonic_ns()), nullptr);
    EXPECT_TRUE(run([&] { return from.connection != nullptr && to.connection != nullptr; }));
    return from.connection;
  }
  template <typename Done>
  bool run(Done&& done, std::uint64_t within = 20 * kSecond) {
    for (const std::uint64_t end = monotonic_ns() + within; !done();) {
      const std::uint64_t now = monotonic_ns();
      if (now > end) return false;
      bool some = false;
      for (auto& e : ends_) some |= e->io && e->pump->run(now);
      if (some) continue;
      std::vector<pollfd> fds;
      for (auto& e : ends_) {
        if (e->io) fds.push_back({e->io->descriptor(), POLLIN, 0});
      }
      (void)::poll(fds.data(), fds.size(), 1);
      for (auto& e : ends_) {
        if (e->io) e->io->woken();
      }
    }
    return true;
  }
  /// Messages one by one, each answered.
  void ping(End& a, Connection* of_a, End& b, Connection* of_b, int times) {
    for (int i = 0; i < times; ++i) {
      for (auto [from, c, to] : {std::tuple{&a, of_a, &b}, std::tuple{&b, of_b, &a}}) {
        const std::uint64_t before = to->messages;
        ASSERT_EQ(from->endpoint->send(*c, 0, {{}, pattern(50, before)}), 0);
        ASSERT_TRUE(run([before, &end = *to] { return end.messages > before; }));
      }
    }
  }
  static bool talks_to(const End& end, const End& peer) {
    return end.io->connected_peer() != nullptr && *end.io->connected_peer() == address_of(peer);
  }

  std::vector<std::unique_ptr<End>> ends_;
};

TEST_F(SecondSocketTest, ThePeerThatMostPacketsGoToHasIt) {
  End &a = add(), &b = add();
  Connection* c = connect(a, b);
  EXPECT_EQ(a.io->connected_peer(), nullptr) << "a few packets are not worth a socket";
  ping(a, c, b, b.connection, kMany);
  EXPECT_TRUE(talks_to(a, b));
  EXPECT_TRUE(talks_to(b, a));
  for (End* e : {&a, &b}) {
    EXPECT_EQ(e->io->counters().joined, 1u);
    EXPECT_EQ(e->io->counters().left, 0u);
    EXPECT_EQ(e->io->counters().strays, 0u);
    EXPECT_EQ(e->wrong, 0u);
  }
}

TEST_F(SecondSocketTest, BulkGoesByItInTrains) {
  End &a = add(), &b = add();
  Connection* c = connect(a, b);
  ping(a, c, b, b.connection, kMany);
  for (std::uint64_t i = 0; i < 10; ++i) {
    b.messages = i;
    ASSERT_EQ(a.endpoint->send(*c, 3, {{}, pattern(3'000'000, i), true, true, i}), 0);
    ASSERT_TRUE(run([&] { return a.sent == i + 1 && b.messages == i + 1; }));
  }
  EXPECT_EQ(b.wrong, 0u);
  EXPECT_TRUE(talks_to(a, b));
}

// EIO: IPsec, or a device that makes no checksums; EINVAL: a kernel that knows no trains.
TEST_F(SecondSocketTest, BulkIsCarriedPacketByPacketWhereTheKernelRefusesTrains) {
  for (const int err : {EIO, EINVAL}) {
    const bool could = where_trains_are_refused(err, [&] {
      ends_.clear();
      constexpr std::uint32_t kEthernet = 1472;  // loopback would take all in one packet
      for (int i = 0; i < 2; ++i) {
        ends_.push_back(std::make_unique<End>());
        ends_.back()->largest_packet = kEthernet;
        ASSERT_TRUE(ends_.back()->open({}));
      }
      End &a = *ends_[0], &b = *ends_[1];
      Connection* c = connect(a, b);
      ping(a, c, b, b.connection, kMany);
      ASSERT_TRUE(talks_to(a, b));
      for (std::uint64_t i = 0; i < 20; ++i) {
        const auto bytes = pattern(200'000, b.messages);
        ASSERT_EQ(a.endpoint->send(*c, 3, {{}, bytes, true, true}), 0);
        ASSERT_TRUE(run([&] { return a.sent == i + 1 || a.down; }));
        ASSERT_FALSE(a.down) << a.err;
      }
      EXPECT_EQ(b.messages, kMany + 20u);
      EXPECT_EQ(b.wrong, 0u);
      EXPECT_EQ(c->mtu().current(), kEthernet) << "it was not the packet that was too big";
      EXPECT_TRUE(talks_to(a, b)) << "nor the second socket's fault";
    });
    if (!could) GTEST_SKIP() << "no seccomp notifications here";
  }
}

// An XDP program behind veth would take such a train for one packet, each time it comes.
TEST_F(SecondSocketTest, AShortTrainLeavesPacketByPacket) {
  std::size_t packets = 0;
  const bool could = where_trains_are_refused(EPERM, [&] {
    End &a = add(), &b = add();
    const SocketAddress to =
        *parse_address(("127.0.0.1:" + std::to_string(b.io->local_address().port)).c_str());
    const std::vector<std::byte> bytes(kBasePacket);
    ASSERT_EQ(a.io->send({to, kBasePacket, 500}, bytes), Sent::kSent);
    const std::uint64_t end = monotonic_ns() + 20 * kSecond;
    for (Arrival got[8]; packets < 3 && monotonic_ns() < end;) packets += b.io->receive(got);
  });
  if (!could) GTEST_SKIP() << "no seccomp notifications here";
  EXPECT_EQ(packets, 3u);
}

TEST_F(SecondSocketTest, AnotherPeerThatBecomesBusierTakesItOver) {
  End &a = add(), &b = add(), &c = add();
  Connection* to_b = connect(a, b);
  Connection* of_b = b.connection;
  Connection* to_c = connect(a, c);
  Connection* of_c = c.connection;
  for (std::uint64_t round = 1; round <= 3; ++round) {
    ping(a, to_b, b, of_b, kMany);
    EXPECT_TRUE(talks_to(a, b));
    ping(a, to_c, c, of_c, kMany);
    EXPECT_TRUE(talks_to(a, c));
    EXPECT_EQ(a.io->counters().joined, 2 * round);
    EXPECT_EQ(a.io->counters().left, 2 * round - 1);
  }
  EXPECT_EQ(a.io->counters().strays, 0u);
}

TEST_F(SecondSocketTest, TwoPeersThatTakeTurnsShareTheMainOne) {
  End &a = add(), &b = add(), &c = add();
  Connection* to_b = connect(a, b);
  Connection* of_b = b.connection;
  Connection* to_c = connect(a, c);
  for (int i = 0; i < kMany; ++i) {
    ping(a, to_b, b, of_b, 1);
    ping(a, to_c, c, c.connection, 1);
  }
  EXPECT_EQ(a.io->counters().joined, 0u);
  EXPECT_TRUE(talks_to(b, a)) << "which has one peer only";
}

using Family = DatagramSocket::Family;

TEST_F(SecondSocketTest, NobodyElseCanBindThePort) {
  End &a = add(), &b = add();
  Connection* c = connect(a, b);
  ping(a, c, b, b.connection, kMany);
  ASSERT_TRUE(talks_to(a, b));
  const std::uint16_t port = a.io->local_address().port;
  for (const auto& [family, at] : {std::pair{Family::kIpv4, on_loopback(port)},
                                   std::pair{Family::kIpv4, on_loopback(port, "0.0.0.0")},
                                   std::pair{Family::kBoth, SocketAddress{{}, port, 0}}}) {
    auto other = DatagramSocket::open(family, 1 << 16);
    ASSERT_TRUE(other.ok() && other->share_port(true));
    EXPECT_EQ(other->bind(at).error().err, EADDRINUSE);
  }
}

TEST_F(SecondSocketTest, APeerInDoubtGoesBackToTheMainOneAndHasToEarnIt) {
  End &a = add(), &b = add();
  Connection* c = connect(a, b);
  ping(a, c, b, b.connection, kMany);
  ASSERT_TRUE(talks_to(a, b));
  ASSERT_EQ(b.endpoint->send(*b.connection, 0, {{}, pattern(50, a.messages)}), 0);
  (void)b.pump->run(monotonic_ns());  // on its way to the second socket
  a.io->doubt(on_loopback(1));
  EXPECT_TRUE(talks_to(a, b)) << "another";
  a.io->doubt(address_of(b));
  EXPECT_EQ(a.io->connected_peer(), nullptr);
  ping(a, c, b, b.connection, static_cast<int>(ConnectedPeerVote::kEnough));
  EXPECT_EQ(a.io->connected_peer(), nullptr);
  EXPECT_EQ(a.io->counters().left, 1u);
  ping(a, c, b, b.connection, static_cast<int>(2 * ConnectedPeerVote::kEnough));
  EXPECT_TRUE(talks_to(a, b));
  EXPECT_EQ(a.wrong + b.wrong, 0u);
}

TEST_F(SecondSocketTest, APeerWhoseHostRefusesIsKnownToHaveGone) {
  End &a = add(), &b = add();
  Connection* c = connect(a, b);
  ping(a, c, b, b.connection, kMany);
  ASSERT_TRUE(talks_to(a, b));
  const std::uint64_t begin = monotonic_ns();
  b.io.reset();
  ASSERT_EQ(a.endpoint->send(*c, 0, {{}, pattern(100, 1)}), 0);
  ASSERT_TRUE(run([&] { return a.down; }));
  EXPECT_EQ(a.err, ECONNRESET);
  EXPECT_LT(monotonic_ns() - begin, 10 * kSecond) << "by its host, not by its silence";
}

TEST_F(SecondSocketTest, APeerThatBeginsAnewAtTheSameAddressIsServed) {
  End &a = add(), &b = add();
  Connection* c = connect(a, b);
  ping(a, c, b, b.connection, kMany);
  for (int i = 0; i < 3; ++i) {
    End& old = *ends_.back();
    const std::uint16_t port = old.io->local_address().port;
    old.io.reset();
    End& anew = add(port);
    a.down = false;
    ASSERT_EQ(a.endpoint->send(*c, 0, {{}, pattern(100, 1)}), 0);
    ASSERT_TRUE(run([&] { return a.down; }));
    EXPECT_EQ(a.err, ECONNRESET) << "by RESET of the new one";
    c = connect(a, anew);
    ping(a, c, anew, anew.connection, kMany);
    EXPECT_TRUE(talks_to(a, anew));
    EXPECT_EQ(anew.wrong, 0u);
  }
}

TEST_F(SecondSocketTest, AChildThatHasInheritedTheDescriptorsTakesNoPackets) {
  End &a = add(), &b = add();
  Connection* c = connect(a, b);
  ping(a, c, b, b.connection, kMany);
  ASSERT_TRUE(talks_to(a, b));
  int hold[2];
  ASSERT_EQ(::pipe(hold), 0);
  const pid_t child = ::fork();
  // keeps all descriptors open, as a program does that has not come to its exec yet
  if (child == 0) {
    ::close(hold[1]);
    char byte;
    (void)!::read(hold[0], &byte, 1);
    ::_exit(0);
  }
  ping(a, c, b, b.connection, 100);
  a.io->doubt(address_of(b));
  b.io->doubt(address_of(a));
  ping(a, c, b, b.connection, kMany);
  ::close(hold[0]);
  ::close(hold[1]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  // The child kept the old one bound, so that there could be no other.
  ping(a, c, b, b.connection, 4 * kMany);
  EXPECT_TRUE(talks_to(a, b));
}

// What PacketIo sends and receives, without a transport.
class SecondSocketPacketsTest : public testing::Test {
 protected:
  static std::unique_ptr<SocketIo> open(const SocketAddress& local = {}) {
    auto made = SocketIo::open(local, {});
    EXPECT_TRUE(made.ok());
    return std::move(*made);
  }
  static DatagramSocket socket(const char* host) {
    auto made = DatagramSocket::open(DatagramSocket::Family::kIpv4, 4 << 20);
    EXPECT_TRUE(made.ok() && made->bind(on_loopback(0, host)).ok());
    return std::move(*made);
  }
  static void send(SocketIo& io, const SocketAddress& to, int times) {
    const std::byte bytes[8] = {};
    for (; times > 0; --times) ASSERT_EQ(io.send({to, 8, 8}, bytes), PacketIo::Sent::kSent);
  }
  /// Whether `io` says within `ms` that something has come.
  static bool readable(SocketIo& io, int ms) {
    pollfd fd{io.descriptor(), POLLIN, 0};
    if (::poll(&fd, 1, ms) != 1) return false;
    io.woken();
    return true;
  }
  /// Where all that comes within a moment came from.
  static std::vector<SocketAddress> senders(SocketIo& io, std::size_t enough) {
    return addresses(io, enough, &Arrival::from);
  }
  static std::vector<SocketAddress> addresses(SocketIo& io, std::size_t enough,
                                              SocketAddress Arrival::*which) {
    std::vector<SocketAddress> found;
    Arrival out[4];
    while (found.size() < enough && readable(io, 5'000)) {
      for (std::size_t n = io.receive(out), i = 0; i < n; ++i) found.push_back(out[i].*which);
    }
    return found;
  }
};

TEST_F(SecondSocketPacketsTest, TheDescriptorIsReadableForEither) {
  auto io = open();
  auto peer = socket("127.0.0.1"), other = socket("127.0.0.1");
  const SocketAddress to = on_loopback(io->local_address().port);
  send(*io, *peer.local_address(), kMany);
  ASSERT_NE(io->connected_peer(), nullptr);
  Arrival out[4];
  EXPECT_FALSE(readable(*io, 10));
  for (DatagramSocket* from : {&peer, &other, &other, &peer, &other}) {
    const std::byte bytes[8] = {};
    ASSERT_EQ(from->send(&to, bytes, 8), DatagramSocket::Sent::kSent);
    ASSERT_TRUE(readable(*io, 5'000));
    ASSERT_EQ(io->receive(out), 1u) << "the first look finds it";
    EXPECT_TRUE(out[0].from == *from->local_address());
    EXPECT_FALSE(readable(*io, 10));
  }
}

TEST_F(SecondSocketPacketsTest, OnlyTheSocketThatWokeTheThreadIsAsked) {
  auto io = open();
  auto peer = socket("127.0.0.1"), other = socket("127.0.0.1");
  const SocketAddress to = on_loopback(io->local_address().port);
  send(*io, *peer.local_address(), kMany);
  ASSERT_NE(io->connected_peer(), nullptr);
  Arrival out[4];
  EXPECT_EQ(io->receive(out), 0u);
  pollfd sources[PacketIo::kMostSources] = {};
  ASSERT_EQ(io->sources(sources), 2u);
  for (int i = 0; i < 100; ++i) {
    DatagramSocket& from = i % 3 == 0 ? other : peer;
    const std::byte bytes[8] = {};
    ASSERT_EQ(from.send(&to, bytes, 8), DatagramSocket::Sent::kSent);
    ASSERT_EQ(::poll(sources, 2, 5'000), 1);
    io->woken_by(sources);
    const std::uint64_t before = io->counters().asked;
    ASSERT_EQ(io->receive(out), 1u);
    EXPECT_TRUE(out[0].from == *from.local_address());
    EXPECT_EQ(io->counters().asked - before, 1u) << "packet " << i;
  }
  // Both: neither keeps the other waiting.
  const std::byte bytes[8] = {};
  for (DatagramSocket* from : {&peer, &other}) {
    ASSERT_EQ(from->send(&to, bytes, 8), DatagramSocket::Sent::kSent);
  }
  std::vector<SocketAddress> found;
  for (int i = 0; i < 2; ++i) {
    ASSERT_GT(::poll(sources, 2, 5'000), 0);
    io->woken_by(sources);
    for (std::size_t n = io->receive(out), k = 0; k < n; ++k) found.push_back(out[k].from);
  }
  EXPECT_EQ(found.size(), 2u);
}

TEST_F(SecondSocketPacketsTest, AThreadThatHasWokenAsksTheSocketThatHadSomethingLast) {
  auto io = open();
  auto peer = socket("127.0.0.1"), other = socket("127.0.0.1");
  const SocketAddress to = on_loopback(io->local_address().port);
  send(*io, *peer.local_address(), kMany);
  ASSERT_NE(io->connected_peer(), nullptr);
  Arrival out[4];
  const std::byte bytes[8] = {};
  unsigned asked = 0;
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(peer.send(&to, bytes, 8), DatagramSocket::Sent::kSent);
    ASSERT_TRUE(readable(*io, 5'000));
    const std::uint64_t before = io->counters().asked;
    ASSERT_EQ(io->receive(out), 1u);
    asked += static_cast<unsigned>(io->counters().asked - before);
  }
  EXPECT_LT(asked, 120u) << "one in eight looks is at the other one";
  // What lies in both is found, and what comes to the other one is not kept waiting by it.
  for (DatagramSocket* from : {&other, &peer, &peer}) {
    ASSERT_EQ(from->send(&to, bytes, 8), DatagramSocket::Sent::kSent);
  }
  ASSERT_TRUE(readable(*io, 5'000));
  std::size_t found = 0;
  for (std::size_t n = 1; n > 0; found += n) n = io->receive(out);
  EXPECT_EQ(found, 3u);
}

TEST_F(SecondSocketPacketsTest, AThreadThatSleepsOnTheSocketsIsToldWhenTheyChange) {
  auto io = open();
  int changes = 0;
  io->on_change([&] { ++changes; });
  pollfd sources[PacketIo::kMostSources] = {};
  EXPECT_EQ(io->sources(sources), 1u);
  EXPECT_EQ(sources[0].events, POLLIN);
  auto peer = socket("127.0.0.1");
  send(*io, *peer.local_address(), kMany);
  ASSERT_NE(io->connected_peer(), nullptr);
  EXPECT_EQ(changes, 1);
  EXPECT_EQ(io->sources(sources), 2u);
  EXPECT_NE(sources[0].fd, sources[1].fd);
  io->want_room(true);
  io->want_room(true);
  EXPECT_EQ(changes, 2);
  EXPECT_EQ(io->sources(sources), 2u);
  EXPECT_EQ(sources[0].events, POLLIN | POLLOUT);
  EXPECT_EQ(sources[1].events, POLLIN) << "nothing waits for that one, which has room";
  Arrival out[4];
  EXPECT_EQ(io->receive(out), 0u);  // the first look after a change is at what came before
  io->doubt(*peer.local_address());
  EXPECT_EQ(io->receive(out), 0u);
  EXPECT_EQ(changes, 3);
  EXPECT_EQ(io->sources(sources), 1u);
}

TEST_F(SecondSocketPacketsTest, WithoutGroPacketsOfATrainArriveOneByOneAtBothSockets) {
  auto io = open(), other = open();
  const SocketAddress there = on_loopback(other->local_address().port);
  const SocketAddress here = on_loopback(io->local_address().port);
  const auto bytes = pattern(5'000, 1);
  const auto arrivals_of_a_train = [&] {
    EXPECT_EQ(other->send({here, bytes.size(), 1'000}, bytes), PacketIo::Sent::kSent);
    std::size_t arrivals = 0;
    Arrival out[8];
    for (std::size_t got = 0; got < bytes.size() && readable(*io, 5'000);) {
      const std::size_t n = io->receive(out);
      for (std::size_t i = 0; i < n; ++i) got += out[i].bytes.size();
      arrivals += n;
    }
    return arrivals;
  };
  if (arrivals_of_a_train() != 1) GTEST_SKIP() << "no GRO here";
  send(*io, there, kMany);
  ASSERT_NE(io->connected_peer(), nullptr);
  EXPECT_EQ(arrivals_of_a_train(), 1u);
  io->stop_gro();
  EXPECT_EQ(arrivals_of_a_train(), 5u) << "by the second socket";
  io->doubt(there);
  EXPECT_EQ(arrivals_of_a_train(), 5u) << "by the main one";
  send(*io, there, 4 * kMany);
  ASSERT_NE(io->connected_peer(), nullptr);
  EXPECT_EQ(arrivals_of_a_train(), 5u) << "by another second one";
}

TEST_F(SecondSocketPacketsTest, ShortPacketsThatComeAloneDoWithoutGroUntilATrainComes) {
  auto io = open(), other = open();
  const SocketAddress there = on_loopback(other->local_address().port);
  const SocketAddress here = on_loopback(io->local_address().port);
  Arrival out[8];
  const auto bytes = pattern(6'000, 1);
  const auto arrivals_of_a_train = [&] {
    EXPECT_EQ(other->send({here, bytes.size(), 1'200}, bytes), PacketIo::Sent::kSent);
    std::vector<std::byte> got;
    std::size_t arrivals = 0;
    while (got.size() < bytes.size() && readable(*io, 5'000)) {
      const std::size_t n = io->receive(out);
      for (std::size_t i = 0; i < n; ++i)
        got.insert(got.end(), out[i].bytes.begin(), out[i].bytes.end());
      arrivals += n;
    }
    EXPECT_EQ(got, bytes);
    return arrivals;
  };
  const auto short_ones = [&](int times) {
    for (; times > 0; --times) {
      send(*other, here, 1);
      ASSERT_TRUE(readable(*io, 5'000));
      ASSERT_EQ(io->receive(out), 1u);
      EXPECT_TRUE(out[0].from == there);
      EXPECT_EQ(out[0].bytes.size(), 8u);
      EXPECT_EQ(io->receive(out), 0u);
    }
  };
  if (arrivals_of_a_train() != 1) GTEST_SKIP() << "no GRO here";
  send(*io, there, kMany);
  ASSERT_NE(io->connected_peer(), nullptr);
  short_ones(100);
  EXPECT_EQ(io->counters().plain, 1u);
  EXPECT_EQ(arrivals_of_a_train(), 5u) << "whole, though one by one";
  EXPECT_EQ(arrivals_of_a_train(), 1u);
  short_ones(100);
  EXPECT_EQ(io->counters().plain, 1u) << "it takes twice as many the second time";
  short_ones(100);
  EXPECT_EQ(io->counters().plain, 2u);
}

TEST_F(SecondSocketPacketsTest, NoPacketIsLostOrOvertakenWhenItChangesHands) {
  auto io = open();
  DatagramSocket peers[] = {socket("127.0.0.1"), socket("127.0.0.1")};
  const SocketAddress to = on_loopback(io->local_address().port);
  std::uint64_t sent[2] = {}, received[2] = {}, wrong = 0;
  Arrival out[4];
  const auto take = [&] {
    const std::size_t n = io->receive(out);
    for (std::size_t i = 0; i < n; ++i) {
      const int which = out[i].from == *peers[0].local_address() ? 0 : 1;
      std::uint64_t number;
      std::memcpy(&number, out[i].bytes.data(), sizeof number);
      wrong += number == received[which] ? 0 : 1;
      received[which] = number + 1;
    }
    return n > 0;
  };
  for (int turn = 0; turn < 12; ++turn) {
    const SocketAddress busy = *peers[turn % 2].local_address();
    for (int i = 0; i < 2 * kMany; ++i) {
      send(*io, busy, 1);
      for (int which : {0, 1}) {
        const std::uint64_t number = sent[which]++;
        ASSERT_EQ(peers[which].send(&to, std::as_bytes(std::span(&number, 1)), 8),
                  DatagramSocket::Sent::kSent);
      }
      if (turn % 3 != 0) (void)take();  // one of two: a queue grows, in the other turns faster
      if (i % 200 != 199) continue;
      while (take()) {
      }
      if (turn > 8) io->doubt(busy);
    }
  }
  EXPECT_GE(io->counters().left, 8u);
  while (readable(*io, 200)) {
    while (take()) {
    }
  }
  for (int which : {0, 1}) EXPECT_EQ(received[which], sent[which]);
  EXPECT_EQ(wrong, 0u);
}

TEST_F(SecondSocketPacketsTest, APeerThatAlwaysHasSomethingDoesNotKeepOthersWaiting) {
  auto io = open();
  auto peer = socket("127.0.0.1"), other = socket("127.0.0.1");
  const SocketAddress to = on_loopback(io->local_address().port);
  send(*io, *peer.local_address(), kMany);
  Arrival out[4];
  (void)io->receive(out);  // the main one is empty
  const std::byte bytes[8] = {};
  for (int i = 0; i < 100; ++i) (void)peer.send(&to, bytes, 8);
  (void)other.send(&to, bytes, 8);
  int looks = 0;
  for (bool found = false; !found && looks < 100; ++looks) {
    for (std::size_t n = io->receive(out), i = 0; i < n; ++i)
      found |= out[i].from == *other.local_address();
  }
  EXPECT_LE(looks, 10);
}

TEST_F(SecondSocketPacketsTest, ANewSecondOneIsReadThoughTheMainOneIsNeverEmpty) {
  auto io = open();
  auto peer = socket("127.0.0.1"), other = socket("127.0.0.1");
  const SocketAddress to = on_loopback(io->local_address().port);
  send(*io, *peer.local_address(), kMany);
  ASSERT_NE(io->connected_peer(), nullptr);
  const std::byte bytes[8] = {};
  (void)peer.send(&to, bytes, 8);
  Arrival out[4];
  bool found = false;
  for (int looks = 0; !found && looks < 10'000; ++looks) {
    for (std::size_t i = 0; i < std::size(out); ++i) (void)other.send(&to, bytes, 8);
    for (std::size_t n = io->receive(out), i = 0; i < n; ++i)
      found |= out[i].from == *peer.local_address();
  }
  EXPECT_TRUE(found);
}

TEST_F(SecondSocketPacketsTest, TheSourceAddressIsTheMainOnes) {
  for (const char* host : {"127.0.0.1", "127.0.0.5"}) {
    auto io = open();
    auto peer = socket(host);
    send(*io, *peer.local_address(), kMany);
    ASSERT_NE(io->connected_peer(), nullptr);
    std::vector<std::byte> room(100);
    Arrival first, got;
    ASSERT_TRUE(peer.receive(room, &first));
    for (int i = 1; i < kMany; ++i) {
      ASSERT_TRUE(peer.receive(room, &got));
      ASSERT_TRUE(got.from == first.from)
          << to_string(got.from) << " and " << to_string(first.from);
    }
  }
}

// A peer has asked at that address: the second socket goes on to receive what it writes there.
TEST_F(SecondSocketPacketsTest, TheSourceAddressIsThatOfItsTrainsWhereTheyHaveOne) {
  auto io = open();
  auto peer = socket("127.0.0.1");
  const SocketAddress asked = on_loopback(0, "127.0.0.5");
  const SocketAddress to = on_loopback(io->local_address().port, "127.0.0.5");
  const std::byte bytes[8] = {};
  for (int i = 0; i < kMany; ++i)
    ASSERT_EQ(io->send({*peer.local_address(), 8, 8, asked}, bytes), PacketIo::Sent::kSent);
  ASSERT_NE(io->connected_peer(), nullptr);
  std::vector<std::byte> room(100);
  Arrival got;
  for (int i = 0; i < kMany; ++i) {
    ASSERT_TRUE(peer.receive(room, &got));
    ASSERT_TRUE(got.from == to) << to_string(got.from);
  }
  for (int i = 0; i < 50; ++i) ASSERT_EQ(peer.send(&to, bytes, 8), DatagramSocket::Sent::kSent);
  const auto where = addresses(*io, 50, &Arrival::at);
  EXPECT_EQ(where.size(), 50u);
  for (const SocketAddress& at : where) EXPECT_EQ(to_string(at), to_string(asked));
  EXPECT_EQ(io->counters().strays, 0u);
  // Another connection with the same peer, which has asked at another address: by the main socket.
  const SocketAddress other = on_loopback(0, "127.0.0.6");
  ASSERT_EQ(io->send({*peer.local_address(), 8, 8, other}, bytes), PacketIo::Sent::kSent);
  ASSERT_TRUE(peer.receive(room, &got));
  EXPECT_TRUE(got.from.ip == other.ip) << to_string(got.from);
  EXPECT_NE(io->connected_peer(), nullptr);
}

TEST_F(SecondSocketPacketsTest, APeerThatWritesToAnotherAddressOfOursIsHeardAndLosesIt) {
  auto io = open();
  auto peer = socket("127.0.0.1");
  const SocketAddress to = on_loopback(io->local_address().port, "127.0.0.5");
  send(*io, *peer.local_address(), kMany);
  ASSERT_NE(io->connected_peer(), nullptr);
  Arrival out[1];
  EXPECT_EQ(io->receive(out), 0u);  // the main one is empty, so the second is in use
  const std::byte bytes[8] = {};
  for (int i = 0; i < 50; ++i) ASSERT_EQ(peer.send(&to, bytes, 8), DatagramSocket::Sent::kSent);
  EXPECT_EQ(senders(*io, 50).size(), 50u);
  EXPECT_EQ(io->connected_peer(), nullptr);
  EXPECT_GE(io->counters().strays, 16u);
}

TEST_F(SecondSocketPacketsTest, OneBoundToAnAddressHasBothThere) {
  auto io = open(on_loopback(0, "127.0.0.7"));
  auto peer = socket("127.0.0.1");
  send(*io, *peer.local_address(), kMany);
  ASSERT_NE(io->connected_peer(), nullptr);
  std::vector<std::byte> room(100);
  Arrival got;
  for (int i = 0; i < kMany; ++i) {
    ASSERT_TRUE(peer.receive(room, &got));
    ASSERT_TRUE(got.from == io->local_address());
  }
}

// In a ping-pong a look that finds one would find no other, and that is a system call.
TEST_F(SecondSocketPacketsTest, AShortPacketIsTakenAloneUnlessTheLastLookHasFoundOne) {
  auto io = open(), other = open();
  const SocketAddress to = on_loopback(io->local_address().port);
  const std::byte bytes[8] = {};
  const auto send_to_it = [&](int packets) {
    for (int i = 0; i < packets; ++i)
      ASSERT_EQ(other->send({to, sizeof bytes, sizeof bytes}, bytes), PacketIo::Sent::kSent);
  };
  std::array<Arrival, 8> arrivals;
  EXPECT_EQ(io->receive(arrivals), 0u);
  send_to_it(6);
  EXPECT_EQ(io->receive(arrivals), 1u);
  EXPECT_EQ(io->receive(arrivals), 5u);
  EXPECT_EQ(io->receive(arrivals), 0u);
  send_to_it(2);
  EXPECT_EQ(io->receive(arrivals), 1u);
  EXPECT_EQ(io->receive(arrivals), 1u);
}

TEST_F(SecondSocketPacketsTest, AFloodOfDatagramsWithoutBytesDoesNotKeepAThread) {
  auto io = open();
  auto stranger = socket("127.0.0.1");
  const SocketAddress to = on_loopback(io->local_address().port);
  for (int i = 0; i < 40; ++i) ASSERT_EQ(stranger.send(&to, {}, 0), DatagramSocket::Sent::kSent);
  ASSERT_TRUE(readable(*io, 5'000));
  std::array<Arrival, 4> out;
  const std::uint64_t before = io->counters().asked;
  const std::size_t n = io->receive(out);
  EXPECT_LE(io->counters().asked - before, out.size());
  for (std::size_t i = 0; i < n; ++i) EXPECT_TRUE(out[i].bytes.empty());
}

TEST_F(SecondSocketPacketsTest, Ipv6HasItToo) {
  auto io = open();
  auto made = DatagramSocket::open(DatagramSocket::Family::kIpv6, 1 << 20);
  if (!made || !made->bind(on_loopback(0, "[::1]"))) GTEST_SKIP() << "no IPv6 on this machine";
  send(*io, *made->local_address(), kMany);
  ASSERT_NE(io->connected_peer(), nullptr);
  const std::byte bytes[8] = {};
  const SocketAddress to = on_loopback(io->local_address().port, "[::1]");
  ASSERT_EQ(made->send(&to, bytes, 8), DatagramSocket::Sent::kSent);
  const auto from = senders(*io, 1);
  ASSERT_EQ(from.size(), 1u);
  EXPECT_TRUE(from[0] == *made->local_address());
}

TEST_F(SecondSocketPacketsTest, ALinkLocalPeerHasNone) {
  auto io = open();
  SocketAddress peer;
  peer.ip = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  peer.port = 9;
  peer.scope = 1;
  send(*io, peer, kMany);
  EXPECT_EQ(io->connected_peer(), nullptr);
  EXPECT_EQ(io->counters().refused, 0u);
}

}  // namespace
}  // namespace clan::udp
