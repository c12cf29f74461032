#include "stream/blocking.h"

#include <fcntl.h>

#include "clan/detail/clock.h"
#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

TEST(Blocking, HasNoDeadlineWithoutATimeLimit) {
  TcpPair pair;
  EXPECT_EQ(deadline_of(pair.fd(0), pair.socket(0), SO_RCVTIMEO), kNoDeadline);
  EXPECT_EQ(time_left_ms(kNoDeadline, -1), -1);
  EXPECT_EQ(time_left_ms(kNoDeadline, 16), 16);
}

TEST(Blocking, EndsWhenTheTimeLimitSays) {
  TcpPair pair;
  const timeval limit{2, 500'000};
  ASSERT_EQ(::setsockopt(pair.fd(0), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  const std::uint64_t now = monotonic_ns();
  const std::uint64_t deadline = deadline_of(pair.fd(0), pair.socket(0), SO_SNDTIMEO);
  EXPECT_GE(deadline, now + 2'500'000'000u);
  EXPECT_LE(deadline, now + 3'500'000'000u);
  EXPECT_GT(time_left_ms(deadline, -1), 1'000);
  EXPECT_EQ(time_left_ms(deadline, 16), 16);
  EXPECT_EQ(time_left_ms(now, -1), 0);
}

TEST(Blocking, AsksForATimeLimitOnceUntilItMayHaveChanged) {
  TcpPair pair;
  Socket& s = pair.socket(0);
  s.receive_timeout = 1'000'000'000;
  EXPECT_NE(deadline_of(pair.fd(0), s, SO_RCVTIMEO), kNoDeadline);
  s.forget_timeouts();
  EXPECT_EQ(deadline_of(pair.fd(0), s, SO_RCVTIMEO), kNoDeadline);
  EXPECT_EQ(s.receive_timeout, 0);
  s.receive_timeout = 1'000'000'000;
  s.share();  // another process may set it
  EXPECT_EQ(deadline_of(pair.fd(0), s, SO_RCVTIMEO), kNoDeadline);
}

TEST(Blocking, IsNotWhatANonblockingDescriptorDoes) {
  TcpPair pair;
  Socket& s = pair.socket(0);
  EXPECT_FALSE(is_nonblocking(pair.fd(0), s));
  s.nonblocking = -1;
  ASSERT_EQ(::fcntl(pair.fd(0), F_SETFL, O_NONBLOCK), 0);
  EXPECT_TRUE(is_nonblocking(pair.fd(0), s));
  EXPECT_EQ(s.nonblocking, 1);
}

TEST(Blocking, SleepsInASendUntilThereIsRoom) {
  TcpPair pair;
  SignalSnapshot since;
  pollfd p{pair.fd(0), POLLOUT, 0};
  EXPECT_EQ(sleep_in_send(&p, 1000, since), 1);
  p = {pair.fd(0), POLLIN, 0};
  EXPECT_EQ(sleep_in_send(&p, 1, since), 0);
}

}  // namespace
}  // namespace clan::preload
