#include "preload/tcp_pair.h"
#include "state/face.h"
#include "stream/close.h"
#include "stream/ending.h"

namespace clan::preload {
namespace {

/// Nothing is on its way, nor left in TCP.
struct Glance : testing::Test {
  Glance() {
    pair.migrate();
    EXPECT_EQ(pair.send(0, "x"), 1);
    EXPECT_EQ(pair.receive(1), "x");
    EXPECT_TRUE(is_idle_fast(s));
  }
  TcpPair pair;
  Socket& s = pair.socket(1);
};

TEST_F(Glance, SeesBytesUntilTheyAreRead) {
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_FALSE(is_idle_fast(s));
  EXPECT_EQ(pair.receive(1), "abc");
  EXPECT_TRUE(is_idle_fast(s));
}

TEST_F(Glance, SeesWhatTheKernelHasToldOfTheOtherEnd) {
  s.kernel_end.set();
  EXPECT_FALSE(is_idle_fast(s));
  s.kernel_end.reset();
  s.kernel_error.set();
  EXPECT_FALSE(is_idle_fast(s));
  s.kernel_error.reset();
  EXPECT_TRUE(is_idle_fast(s));
}

TEST_F(Glance, SeesThatThisEndReadsNoMoreOrByTcpAgain) {
  s.shut_read = true;
  EXPECT_FALSE(is_idle_fast(s));
  s.shut_read = false;
  s.back_in = true;
  EXPECT_FALSE(is_idle_fast(s));
  s.back_in = false;
  EXPECT_TRUE(is_idle_fast(s));
}

TEST_F(Glance, SeesThatBytesOfTcpAreLeft) {
  s.drained = false;
  EXPECT_FALSE(is_idle_fast(s));
  s.drained = true;
  EXPECT_TRUE(is_idle_fast(s));
}

TEST_F(Glance, SeesThatTheOtherEndGoesBackToTcpOrHas) {
  for (const auto bit : {socket_face::kLeaving, socket_face::kGone}) {
    add_state(s.theirs(), bit);
    EXPECT_FALSE(is_idle_fast(s));
    s.theirs().words[socket_face::kState].fetch_and(~bit);
    EXPECT_TRUE(is_idle_fast(s));
  }
}

TEST_F(Glance, SeesTheEndOfThePeersBytesAlone) {
  EXPECT_FALSE(has_ended(s));
  ASSERT_EQ(shared_shutdown(pair.fd(0), pair.socket(0), SHUT_WR), 0);
  EXPECT_TRUE(has_ended(s));
  EXPECT_FALSE(is_idle_fast(s));
  EXPECT_FALSE(has_ended(pair.socket(0)));
}

}  // namespace
}  // namespace clan::preload
