// The XDP program and AF_XDP sockets, on the loopback device of a network namespace of the test's
// own. Packets between two hosts: xdp_hosts.py.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/ethtool.h>
#include <linux/if_xdp.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "clan/detail/clock.h"
#include "link/udp/xdp/packet_choice.h"
#include "link/udp/xdp/xdp_io.h"
#include "support/pattern.h"

namespace clan::udp {
namespace {

constexpr int kLoopback = 1;
constexpr Ipv4 kOurs{127, 0, 0, 1};
using Where = XdpProgram::Where;

bool set_loopback(bool up) {
  const Fd socket(::socket(AF_INET, SOCK_DGRAM, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = up ? IFF_UP : 0;
  return ::ioctl(socket.get(), SIOCSIFFLAGS, &request) == 0;
}

bool set_gro_of_loopback(bool on) {
  const Fd socket(::socket(AF_INET, SOCK_DGRAM, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  ethtool_value value{ETHTOOL_SGRO, on ? 1u : 0u};
  request.ifr_data = reinterpret_cast<char*>(&value);
  return ::ioctl(socket.get(), SIOCETHTOOL, &request) == 0;
}

/// A datagram by the kernel's sockets.
void send_to(std::uint16_t port, std::span<const std::byte> bytes) {
  auto socket = DatagramSocket::open(DatagramSocket::Family::kIpv4, 1 << 16);
  ASSERT_TRUE(socket.ok());
  const SocketAddress to = socket_address_of(kOurs, port);
  ASSERT_EQ(socket->send(&to, bytes, bytes.size()), DatagramSocket::Sent::kSent);
}

class XdpTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const Status s = XdpProgram::possible(); !s) GTEST_SKIP() << s.error().message();
    before_ = Fd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    if (::unshare(CLONE_NEWNET) != 0) GTEST_SKIP() << "no network namespaces";
    ASSERT_TRUE(set_loopback(true));
    auto kernel = Rtnetlink::open();
    ASSERT_TRUE(kernel.ok());
    kernel_.emplace(std::move(*kernel));
  }
  void TearDown() override {
    if (before_) (void)::setns(before_.get(), CLONE_NEWNET);
  }
  std::uint32_t program_at_device() { return kernel_->device(kLoopback)->xdp_program; }
  Result<XdpProgram> join() { return XdpProgram::join(*kernel_, kLoopback, Where::kGeneric); }

  Fd before_;
  std::optional<Rtnetlink> kernel_;
};

/// The payload of the one frame that comes.
std::vector<std::byte> take_one(XdpSocket& socket) {
  pollfd ready{socket.fd(), POLLIN, 0};
  std::span<std::byte> frame;
  if (::poll(&ready, 1, 10'000) != 1 || socket.take({&frame, 1}) != 1) return {};
  return {frame.begin() + kFrameHeader, frame.end()};
}

TEST_F(XdpTest, ADevicesProgramIsSharedAndGoesWithItsLastUser) {
  auto first = join();
  ASSERT_TRUE(first.ok()) << first.error().message();
  const std::uint32_t id = program_at_device();
  EXPECT_NE(id, 0u);
  auto second = std::make_unique<Result<XdpProgram>>(join());
  ASSERT_TRUE(second->ok()) << second->error().message();
  EXPECT_EQ(program_at_device(), id) << "the one that was there";
  first = Error{};
  EXPECT_EQ(program_at_device(), id) << "the second process holds it";
  EXPECT_TRUE((*second)->attached());
  second.reset();
  EXPECT_EQ(program_at_device(), 0u);
}

TEST_F(XdpTest, AProcessThatIsKilledLeavesNothingAndOthersGoOn) {
  auto ours = join();
  ASSERT_TRUE(ours.ok()) << ours.error().message();
  const std::uint32_t id = program_at_device();
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto theirs = join();
    auto socket = XdpSocket::open(kLoopback);
    const bool good = theirs.ok() && socket.ok() &&
                      theirs->claim(4000, kOurs, (*socket)->queue(), (*socket)->fd()).ok();
    (void)!::write(ready[1], good ? "y" : "n", 1);
    ::pause();
  }
  char said = 0;
  ASSERT_EQ(::read(ready[0], &said, 1), 1);
  EXPECT_EQ(said, 'y');
  EXPECT_EQ(program_at_device(), id);
  const auto busy = XdpSocket::open(kLoopback);
  EXPECT_EQ(busy.ok() ? 0 : busy.error().err, EBUSY) << "a queue has one memory";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  // The kernel takes its socket away a little later.
  auto socket = XdpSocket::open(kLoopback);
  for (int i = 0; i < 1000 && !socket.ok(); ++i) {
    ::usleep(10'000);
    socket = XdpSocket::open(kLoopback);
  }
  ASSERT_TRUE(socket.ok()) << socket.error().message();
  EXPECT_TRUE(ours->claim(4000, kOurs, 0, (*socket)->fd()).ok()) << "its port is nobody's";
  const auto sent = test::pattern(64, 1);
  send_to(4000, sent);
  EXPECT_EQ(take_one(**socket), sent);
  ours = Error{};
  EXPECT_EQ(program_at_device(), 0u);
}

TEST_F(XdpTest, OnlyPacketsToOurPortAndAddressAreTaken) {
  auto program = join();
  ASSERT_TRUE(program.ok()) << program.error().message();
  auto socket = XdpSocket::open(kLoopback);
  ASSERT_TRUE(socket.ok()) << socket.error().message();
  const int fd = (*socket)->fd();
  auto held = SocketIo::open(socket_address_of(kOurs, 0), {});
  ASSERT_TRUE(held.ok());
  const std::uint16_t port = (*held)->local_address().port;
  const auto kernel_has = [&](std::span<const std::byte> bytes) {
    send_to(port, bytes);
    pollfd ready{(*held)->descriptor(), POLLIN, 0};
    std::array<Arrival, 8> arrivals;
    return ::poll(&ready, 1, 10'000) == 1 && (*held)->receive(arrivals) == 1 &&
           std::equal(bytes.begin(), bytes.end(), arrivals[0].bytes.begin(),
                      arrivals[0].bytes.end());
  };
  const auto small = test::pattern(64, 1), large = test::pattern(20'000, 2);
  EXPECT_TRUE(kernel_has(small)) << "nobody has claimed it";
  ASSERT_TRUE(program->claim(port, {127, 0, 0, 2}, 0, fd).ok());
  EXPECT_TRUE(kernel_has(small)) << "another address";
  program->release(port);
  ASSERT_TRUE(program->claim(port, kOurs, 1, fd).ok());
  EXPECT_TRUE(kernel_has(small)) << "another queue";
  const Fd other(::socket(AF_XDP, SOCK_RAW, 0));
  const int entries = 64;
  ASSERT_EQ(::setsockopt(other.get(), SOL_XDP, XDP_RX_RING, &entries, sizeof entries), 0);
  EXPECT_EQ(program->claim(port, kOurs, 0, other.get()).error().err, EEXIST);
  program->release(port);
  ASSERT_TRUE(program->claim(port, kOurs, 0, fd).ok());
  EXPECT_TRUE(kernel_has(large)) << "fits no frame";
  send_to(port, small);
  EXPECT_EQ(take_one(**socket), small);
  socket = Error{};
  EXPECT_TRUE(kernel_has(small)) << "the socket has gone, the entry not";
}

TEST_F(XdpTest, FramesAreLentAndComeBack) {
  auto program = join();
  auto socket = XdpSocket::open(kLoopback);
  ASSERT_TRUE(program.ok() && socket.ok());
  ASSERT_TRUE(program->claim(4000, kOurs, 0, (*socket)->fd()).ok());
  const FrameHeader header({}, {}, {127, 0, 0, 9}, 5000, kOurs, 4000);
  std::uint64_t got = 0;
  // Several times what the rings hold, some of it under way at a time.
  for (std::uint64_t sent = 0; sent < 5 * XdpSocket::kReceive;) {
    ASSERT_TRUE((*socket)->has_room(50));
    for (int i = 0; i < 50; ++i, ++sent) {
      const auto payload = test::pattern(40 + sent % 1000, sent);
      header.write((*socket)->next_frame().first(kFrameHeader + payload.size()), payload);
      (*socket)->post(kFrameHeader + payload.size());
    }
    ASSERT_TRUE((*socket)->push());
    for (const std::uint64_t end = monotonic_ns() + 20'000'000'000; got < sent;) {
      ASSERT_LT(monotonic_ns(), end);
      std::array<std::span<std::byte>, 7> frames;
      (*socket)->give_back();
      const std::size_t n = (*socket)->take(frames);
      for (std::size_t i = 0; i < n; ++i, ++got) {
        const auto payload = frames[i].subspan(kFrameHeader);
        ASSERT_EQ(payload.size(), 40 + got % 1000);
        ASSERT_TRUE(test::is_pattern(payload, got, 0));
      }
    }
  }
}

// A device that passes frames to another one, where they wait. All may be there while the ring is
// empty, and the kernel then says again and again that the ring has room.
TEST_F(XdpTest, ALaneWhoseFramesAreAllWithTheDeviceIsNotReadyToSend) {
  constexpr const char* kDevices =
      "exec 2>/dev/null; ip link add v0 type veth peer name v1 && ip link set v0 up && "
      "ip link set v1 up && ip link add link v0 name m0 type macvlan && "
      "ip address add 10.78.0.1/24 dev m0 && ip link set m0 up && "
      "ip neighbour add 10.78.0.2 lladdr 02:00:00:00:00:01 dev m0 nud permanent && "
      "tc qdisc add dev v0 root tbf rate 8kbit burst 3k limit 10m";
  if (std::system(kDevices) != 0) GTEST_SKIP() << "no ip, tc, macvlan or tbf";
  auto opened = open_packets(socket_address_of({10, 78, 0, 1}, 0), Packets::kXdp);
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  auto* io = dynamic_cast<XdpIo*>(opened->get());
  ASSERT_NE(io, nullptr);
  const SocketAddress peer = socket_address_of({10, 78, 0, 2}, 9);
  const auto bytes = test::pattern(1000, 1);
  const auto send = [&] { return io->send({peer, bytes.size(), bytes.size()}, bytes); };
  unsigned sent = 0;
  while (sent < 4 * XdpSocket::kSend && send() == PacketIo::Sent::kSent) ++sent;
  ASSERT_NE(io->path_to(peer), PacketPath::kSockets);
  ASSERT_LT(sent, 4 * XdpSocket::kSend) << "the device keeps none";
  std::array<Arrival, 8> arrivals;
  io->woken();
  ASSERT_EQ(io->receive(arrivals), 0u);
  io->want_room(true);
  EXPECT_FALSE(io->tells_of_room());
  pollfd ready{io->descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 0), 0);
  EXPECT_EQ(send(), PacketIo::Sent::kLater);
  ASSERT_EQ(std::system("tc qdisc delete dev v0 root"), 0);
  EXPECT_EQ(send(), PacketIo::Sent::kSent);
}

TEST_F(XdpTest, AThreadInAnotherNamespaceIsKnown) {
  const Fd here(::socket(AF_INET, SOCK_DGRAM, 0)), also(::socket(AF_XDP, SOCK_RAW, 0));
  EXPECT_TRUE(same_network(here.get(), also.get()));
  ASSERT_EQ(::unshare(CLONE_NEWNET), 0);
  const Fd there(::socket(AF_XDP, SOCK_RAW, 0));
  EXPECT_FALSE(same_network(here.get(), there.get()));
}

TEST_F(XdpTest, ADeviceThatMakesOneOfPacketsIsKnown) {
  for (const bool on : {true, false, true}) {
    if (!set_gro_of_loopback(on)) GTEST_SKIP() << "GRO cannot be set";
    EXPECT_EQ(kernel_->merges(kLoopback), on);
  }
  EXPECT_TRUE(kernel_->merges(0x7fff'fff0)) << "in doubt";
}

TEST_F(XdpTest, PeersOfTheLoopbackDeviceStayWithTheSockets) {
  auto opened = open_packets(socket_address_of(kOurs, 0), Packets::kXdp);
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  auto* io = dynamic_cast<XdpIo*>(opened->get());
  ASSERT_NE(io, nullptr);
  const SocketAddress ourselves = io->local_address();
  const auto bytes = test::pattern(64, 1);
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(io->send({ourselves, 64, 64}, bytes), PacketIo::Sent::kSent);
    std::array<Arrival, 8> arrivals;
    std::size_t n = 0;
    for (int looks = 0; looks < 100'000 && n == 0; ++looks) n = io->receive(arrivals);
    ASSERT_EQ(n, 1u);
  }
  EXPECT_EQ(io->path_to(ourselves), PacketPath::kSockets);
  EXPECT_EQ(program_at_device(), 0u);
}

}  // namespace
}  // namespace clan::udp
