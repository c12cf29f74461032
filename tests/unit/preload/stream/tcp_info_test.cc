#include <linux/tcp.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "preload/tcp_pair.h"
#include "state/face.h"
#include "stream/ending.h"

namespace clan::preload {
namespace {

/// All of it, padding too: the kernel's bytes are copied.
std::span<const std::byte> bytes_of(const tcp_info& info) {
  return std::as_bytes(std::span(&info, 1));
}

struct TcpInfo : testing::Test {
  /// What the kernel says of an end.
  tcp_info kernels(int end) const {
    tcp_info info{};
    socklen_t size = sizeof info;
    EXPECT_EQ(::getsockopt(pair.fd(end), IPPROTO_TCP, TCP_INFO, &info, &size), 0);
    return info;
  }
  /// The same as the application sees it.
  tcp_info told(int end) const {
    tcp_info info = kernels(end);
    show_pipe_in_tcp_info(pair.fd(end), pair.socket(end), &info, sizeof info);
    return info;
  }
  TcpPair pair;
};

TEST_F(TcpInfo, OfAConnectionOnTcpIsTheKernels) {
  ASSERT_EQ(::send(pair.fd(0), "abc", 3, 0), 3);
  const tcp_info before = kernels(0);
  tcp_info shown = before;
  show_pipe_in_tcp_info(pair.fd(0), pair.socket(0), &shown, sizeof shown);
  EXPECT_TRUE(std::ranges::equal(bytes_of(shown), bytes_of(before)));
}

TEST_F(TcpInfo, CountsWhatWentByThePipeAsSentAcknowledgedAndReceived) {
  pair.migrate();
  const tcp_info before = told(0);
  const tcp_info before_1 = told(1);
  ASSERT_EQ(pair.send(0, std::string(1000, 'x')), 1000);
  ASSERT_EQ(pair.receive(1), std::string(1000, 'x'));
  ASSERT_EQ(pair.send(0, std::string(500, 'y')), 500);
  EXPECT_EQ(told(0).tcpi_bytes_sent, before.tcpi_bytes_sent + 1500);
  EXPECT_EQ(told(0).tcpi_bytes_acked, before.tcpi_bytes_acked + 1500);
  EXPECT_EQ(told(1).tcpi_bytes_received, before_1.tcpi_bytes_received + 1500)
      << "what has not been read counts as it does in the kernel's queue";
  EXPECT_EQ(told(1).tcpi_bytes_sent, before_1.tcpi_bytes_sent);
}

TEST_F(TcpInfo, CountsBytesFromBeforeTheSwitchOnce) {
  ASSERT_EQ(::send(pair.fd(0), "before", 6, 0), 6);
  ASSERT_EQ(kernels(0).tcpi_bytes_sent, 6u);
  pair.migrate();
  ASSERT_EQ(pair.receive(1), "before");
  ASSERT_EQ(pair.send(0, "after"), 5);
  ASSERT_EQ(pair.receive(1), "after");
  EXPECT_EQ(told(0).tcpi_bytes_sent, 11u);
  EXPECT_EQ(told(1).tcpi_bytes_received, 11u);
}

TEST_F(TcpInfo, CountsWhatIsWrittenToTcpAfterItHasGoneBack) {
  pair.migrate();
  ASSERT_EQ(pair.send(0, "abc"), 3);
  const tcp_info before = told(0);
  add_state(pair.socket(0).mine(), socket_face::kGone);
  ASSERT_EQ(::send(pair.fd(0), "back", 4, 0), 4);
  EXPECT_EQ(told(0).tcpi_bytes_sent, before.tcpi_bytes_sent + 4);
}

TEST_F(TcpInfo, NeverFalls) {
  pair.migrate();
  ASSERT_EQ(pair.send(0, "abc"), 3);
  const std::uint64_t sent = told(0).tcpi_bytes_sent;
  pair.socket(0).told_sent.told += 100;  // said before, by another thread that counted later
  EXPECT_EQ(told(0).tcpi_bytes_sent, sent + 100);
}

TEST_F(TcpInfo, SaysSinceWhenNothingHasGone) {
  pair.migrate();
  ASSERT_EQ(pair.send(0, "abc"), 3);
  tcp_info info{};
  info.tcpi_last_data_sent = info.tcpi_last_data_recv = 77'777;
  (void)told(0);
  pair.socket(0).told_sent.changed_ns = monotonic_ns() - 5'000'000'000;
  show_pipe_in_tcp_info(pair.fd(0), pair.socket(0), &info, sizeof info);
  // The kernel's own, of TCP, is younger: the connection has just been made.
  EXPECT_LT(info.tcpi_last_data_sent, 77'777u);
  EXPECT_EQ(info.tcpi_last_data_recv, 77'777u) << "nothing has come by the pipe";
}

TEST_F(TcpInfo, WritesNoMoreThanTheApplicationsStructureHolds) {
  pair.migrate();
  ASSERT_EQ(pair.send(0, "abc"), 3);
  constexpr std::size_t kCut = offsetof(tcp_info, tcpi_bytes_received);
  tcp_info info;
  std::memset(&info, 0xaa, sizeof info);
  show_pipe_in_tcp_info(pair.fd(0), pair.socket(0), &info, kCut);
  EXPECT_EQ(info.tcpi_bytes_acked, told(0).tcpi_bytes_acked);
  EXPECT_EQ(info.tcpi_bytes_received, 0xaaaa'aaaa'aaaa'aaaau);
  EXPECT_EQ(info.tcpi_bytes_sent, 0xaaaa'aaaa'aaaa'aaaau);
}

}  // namespace
}  // namespace clan::preload
