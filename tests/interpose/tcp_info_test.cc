// What TCP_INFO says of a connection. Run with the interposer preloaded, and without: both have to
// pass.
#include <linux/tcp.h>

#include <thread>

#include "connection.h"

namespace clan::test {
namespace {

tcp_info info_of(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size), 0);
  EXPECT_GE(size, offsetof(tcp_info, tcpi_bytes_retrans));
  return info;
}

TEST(TcpInfo, CountsWhatWasWrittenAndRead) {
  Echo peer;
  std::uint64_t bytes = 0;
  for (int round = 0; round < 200; ++round) {
    ping(peer.fd, 1);
    bytes += 1000;
    const tcp_info now = info_of(peer.fd);
    EXPECT_EQ(now.tcpi_bytes_sent, bytes);
    EXPECT_EQ(now.tcpi_bytes_received, bytes);
    EXPECT_LE(now.tcpi_bytes_acked, bytes + 1);
  }
  // Acknowledgements may be late, and count the SYN.
  std::uint64_t acked = 0;
  for (int i = 0; i < 100 && acked < bytes; ++i) {
    ::usleep(10'000);
    acked = info_of(peer.fd).tcpi_bytes_acked;
  }
  EXPECT_EQ(acked, bytes + 1);
  EXPECT_EQ(info_of(peer.fd).tcpi_notsent_bytes, 0u);
  EXPECT_EQ(info_of(peer.fd).tcpi_unacked, 0u);
  if (preloaded()) {
    EXPECT_GT(bytes_by_shared_memory(), 300'000u);
  }
}

TEST(TcpInfo, NeverFallsWhileBytesFlowBothWays) {
  Echo peer;
  ping(peer.fd, 10);
  constexpr std::uint64_t kBytes = 20 << 20;
  std::atomic<bool> failed{false};
  std::thread reader([&] {
    std::vector<char> in(10'000);
    for (std::uint64_t got = 0; got < kBytes;) {
      const ssize_t n = ::read(peer.fd, in.data(), in.size());
      if (n <= 0) return failed.store(true);
      got += static_cast<std::uint64_t>(n);
    }
  });
  std::vector<char> out(3000, 'x');
  tcp_info last = info_of(peer.fd);
  for (std::uint64_t sent = 0; sent < kBytes;) {
    const std::size_t most = std::min<std::uint64_t>(out.size(), kBytes - sent);
    const ssize_t n = ::write(peer.fd, out.data(), most);
    ASSERT_GT(n, 0);
    sent += static_cast<std::uint64_t>(n);
    const tcp_info now = info_of(peer.fd);
    ASSERT_GE(now.tcpi_bytes_sent, last.tcpi_bytes_sent);
    ASSERT_GE(now.tcpi_bytes_acked, last.tcpi_bytes_acked);
    ASSERT_GE(now.tcpi_bytes_received, last.tcpi_bytes_received);
    ASSERT_LE(now.tcpi_bytes_sent - now.tcpi_bytes_retrans, sent + 10'000);
    last = now;
  }
  reader.join();
  EXPECT_FALSE(failed.load());
  const tcp_info now = info_of(peer.fd);
  EXPECT_EQ(now.tcpi_bytes_sent - now.tcpi_bytes_retrans, kBytes + 10'000);
  EXPECT_EQ(now.tcpi_bytes_received, kBytes + 10'000);
}

TEST(TcpInfo, TellsHowLongNothingWasSent) {
  Echo peer;
  ping(peer.fd, 100);
  EXPECT_LT(info_of(peer.fd).tcpi_last_data_sent, 250u);
  ::usleep(300'000);
  const tcp_info quiet = info_of(peer.fd);
  EXPECT_GE(quiet.tcpi_last_data_sent, 250u);
  EXPECT_GE(quiet.tcpi_last_data_recv, 250u);
  ping(peer.fd, 1);
  EXPECT_LT(info_of(peer.fd).tcpi_last_data_sent, 250u);
  EXPECT_LT(info_of(peer.fd).tcpi_last_data_recv, 250u);
}

TEST(TcpInfo, IsCutToTheRoomThereIs) {
  Echo peer;
  ping(peer.fd, 100);
  char room[256];
  std::memset(room, 0x55, sizeof room);
  socklen_t size = 104;  // of <netinet/tcp.h>
  ASSERT_EQ(::getsockopt(peer.fd, IPPROTO_TCP, TCP_INFO, room, &size), 0);
  EXPECT_EQ(size, 104u);
  for (std::size_t i = size; i < sizeof room; ++i) ASSERT_EQ(room[i], 0x55);
  size = sizeof room;
  EXPECT_EQ(::getsockopt(-1, IPPROTO_TCP, TCP_INFO, room, &size), -1);
}

TEST(TcpInfo, GoesOnWhenTheConnectionGoesBackToTcp) {
  Echo peer;
  ping(peer.fd, 200);
  ASSERT_EQ(::fcntl(peer.fd, F_SETOWN, ::getpid()), 0);
  ::signal(SIGIO, SIG_IGN);
  ASSERT_EQ(::fcntl(peer.fd, F_SETFL, O_ASYNC), 0);
  ping(peer.fd, 200);
  const tcp_info now = info_of(peer.fd);
  EXPECT_EQ(now.tcpi_bytes_sent - now.tcpi_bytes_retrans, 400'000u);
  EXPECT_EQ(now.tcpi_bytes_received, 400'000u);
}

}  // namespace
}  // namespace clan::test
