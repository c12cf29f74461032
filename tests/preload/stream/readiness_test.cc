#include "stream/readiness.h"

#include <poll.h>

#include "preload/tcp_pair.h"
#include "stream/close.h"
#include "stream/glance.h"

namespace clan::preload {
namespace {

struct Readiness : testing::Test {
  Readiness() {
    pair.migrate();
    EXPECT_EQ(pair.send(0, "x"), 1);
    EXPECT_EQ(pair.receive(1), "x");
  }
  short of(int end) const { return readiness(pair.fd(end), pair.socket(end), true); }
  TcpPair pair;
};

TEST_F(Readiness, OfASilentConnectionIsRoomAlone) {
  EXPECT_EQ(of(1) & POLLIN, 0);
  EXPECT_NE(of(0) & POLLOUT, 0);
}

TEST_F(Readiness, ShowsBytesAndAGlanceSeesThem) {
  EXPECT_TRUE(is_idle_fast(pair.socket(1)));
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_FALSE(is_idle_fast(pair.socket(1)));
  EXPECT_NE(of(1) & POLLIN, 0);
  EXPECT_EQ(bytes_to_read(pair.fd(1), pair.socket(1)), 3);
}

TEST_F(Readiness, WaitsForAsManyBytesAsTheLowWaterMark) {
  pair.socket(1).low_water = 4;
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_EQ(of(1) & POLLIN, 0);
  ASSERT_EQ(pair.send(0, "d"), 1);
  EXPECT_NE(of(1) & POLLIN, 0);
}

TEST_F(Readiness, OfAFullPipeDoesNotWaitForMore) {
  pair.socket(1).low_water = 1 << 30;
  const std::string block(1 << 20, 'x');
  ASSERT_GT(pair.send(0, "some"), 0);
  EXPECT_EQ(of(1) & POLLIN, 0);
  while (pair.send(0, block) > 0) {
  }
  EXPECT_NE(of(1) & POLLIN, 0);
}

TEST_F(Readiness, ShowsTheEndBeforeTheBytesInFrontOfItAreRead) {
  ASSERT_EQ(pair.send(0, "abc"), 3);
  ASSERT_EQ(shared_shutdown(pair.fd(0), pair.socket(0), SHUT_WR), 0);
  EXPECT_TRUE(has_ended(pair.socket(1)));
  EXPECT_EQ(of(1) & (POLLIN | POLLRDHUP), POLLIN | POLLRDHUP);
}

TEST_F(Readiness, IsNoRoomWhileThePipeIsFull) {
  const std::string block(1 << 20, 'x');
  while (pair.send(0, block) > 0) {
  }
  EXPECT_EQ(of(0) & POLLOUT, 0);
  while (!pair.receive(1, 1 << 20).empty()) {
  }
  EXPECT_NE(of(0) & POLLOUT, 0);
}

TEST_F(Readiness, IsLookedAtOnceMoreBeforeASleep) {
  EXPECT_TRUE(prepare_sleep(pair.socket(1), POLLIN));
  ASSERT_EQ(pair.send(0, "x"), 1);
  EXPECT_FALSE(prepare_sleep(pair.socket(1), POLLIN));
}

}  // namespace
}  // namespace clan::preload
