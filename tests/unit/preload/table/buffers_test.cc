#include "table/buffers.h"

#include <sys/resource.h>

#include <bit>

#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

TEST(Buffers, RingsArePowersOfTwoBetweenTheirBounds) {
  EXPECT_TRUE(std::has_single_bit(ring_bytes()));
  EXPECT_GE(ring_bytes(), 512u * 1024);
  EXPECT_LE(ring_bytes(), 32u * 1024 * 1024);
}

TEST(Buffers, APipeTakesAtLeastWhatWasSetForTheSocketAndNotMuchMore) {
  TcpPair pair;
  const int bytes = 64 * 1024;
  ASSERT_EQ(::setsockopt(pair.fd(0), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes), 0);
  ASSERT_EQ(::setsockopt(pair.fd(1), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
  pair.migrate();
  const std::string block(16 * 1024, 'x');
  std::size_t sent = 0;
  for (ssize_t n; sent < 64u << 20 && (n = pair.send(0, block)) > 0;)
    sent += static_cast<std::size_t>(n);
  EXPECT_GE(sent, static_cast<std::size_t>(bytes));
  EXPECT_LE(sent, 2u << 20);
}

TEST(Buffers, ALowWaterMarkIsWhatTheKernelMakesOfIt) {
  TcpPair pair;
  for (const int buffer : {0, 64 * 1024}) {
    if (buffer != 0) {
      ASSERT_EQ(::setsockopt(pair.fd(0), SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer), 0);
    }
    for (const int asked : {-1, 0, 1, 5000, 1 << 30}) {
      const int here = low_water_as_tcp(pair.fd(0), asked);
      int there = 0;
      socklen_t size = sizeof there;
      ASSERT_EQ(::setsockopt(pair.fd(0), SOL_SOCKET, SO_RCVLOWAT, &asked, sizeof asked), 0);
      ASSERT_EQ(::getsockopt(pair.fd(0), SOL_SOCKET, SO_RCVLOWAT, &there, &size), 0);
      EXPECT_EQ(here, there) << asked << " of a buffer of " << buffer;
    }
  }
}

}  // namespace
}  // namespace clan::preload
