#include "stream/readiness.h"

#include <poll.h>

#include "demote/demote.h"
#include "preload/tcp_pair.h"
#include "state/face.h"
#include "stream/close.h"
#include "stream/ending.h"

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

TEST_F(Readiness, AsItHoldsNowDoesNothingForAConnectionThatGoesBack) {
  Socket& s = pair.socket(1);
  EXPECT_FALSE(is_due(s));
  add_state(pair.socket(0).mine(), socket_face::kLeaving);
  EXPECT_TRUE(is_due(s));
  (void)ready_now(pair.fd(1), s, POLLIN);
  EXPECT_EQ(state_of(s.mine()) & socket_face::kGone, 0u);
  do_due(pair.fd(1), s);
  EXPECT_NE(state_of(s.mine()) & socket_face::kGone, 0u);
}

TEST_F(Readiness, OfAConnectionThatComesBackIsTcpsBehindWhatIsDue) {
  Socket& s = pair.socket(1);
  leave_pipe(pair.fd(0), false, reasons::Why::kUrgent);
  ASSERT_TRUE(is_due(s));
  ASSERT_EQ(::send(pair.fd(0), "tcp", 3, 0), 3);
  EXPECT_EQ(ready_now(pair.fd(1), s, POLLIN) & POLLIN, 0);
  EXPECT_FALSE(s.reads_kernel());
  EXPECT_EQ(readiness(pair.fd(1), s, false) & POLLIN, POLLIN);
  EXPECT_TRUE(s.reads_kernel());
}

}  // namespace
}  // namespace clan::preload
