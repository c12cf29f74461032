#include "stream/blocking.h"

#include <fcntl.h>

#include "clan/clock.h"
#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

TEST(Blocking, HasNoDeadlineWithoutATimeLimit) {
  TcpPair pair;
  EXPECT_EQ(deadline_of(pair.fd(0), SO_RCVTIMEO), kNoDeadline);
  EXPECT_EQ(time_left_ms(kNoDeadline, -1), -1);
  EXPECT_EQ(time_left_ms(kNoDeadline, 16), 16);
}

TEST(Blocking, EndsWhenTheTimeLimitSays) {
  TcpPair pair;
  const timeval limit{2, 500'000};
  ASSERT_EQ(::setsockopt(pair.fd(0), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  const std::uint64_t now = monotonic_ns(), deadline = deadline_of(pair.fd(0), SO_SNDTIMEO);
  EXPECT_GE(deadline, now + 2'500'000'000u);
  EXPECT_LE(deadline, now + 3'500'000'000u);
  EXPECT_GT(time_left_ms(deadline, -1), 1'000);
  EXPECT_EQ(time_left_ms(deadline, 16), 16);
  EXPECT_EQ(time_left_ms(now, -1), 0);
}

// Past the library the kernel's option changes, and nobody has said so.
void set_limit(int fd, int seconds) {
  const timeval limit{seconds, 0};
  ASSERT_EQ(sys::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
}

TEST(Blocking, AsksForTheTimeLimitOfWhatIsCarriedOnceAfterEachChange) {
  TcpPair pair;
  Socket& s = pair.socket(0);
  int carrier = 0;
  s.far.store(reinterpret_cast<Carried*>(&carrier));  // nobody looks behind it here
  EXPECT_EQ(deadline_of_receive(pair.fd(0), s), kNoDeadline);
  set_limit(pair.fd(0), 2);
  EXPECT_EQ(deadline_of_receive(pair.fd(0), s), kNoDeadline) << "the kernel is not asked again";
  s.limits_set.fetch_add(1);
  EXPECT_NE(deadline_of_receive(pair.fd(0), s), kNoDeadline);
  set_limit(pair.fd(0), 0);
  EXPECT_EQ(deadline_of_receive(pair.fd(0), s), kNoDeadline) << "a limit is asked for each time";
  s.far.store(nullptr);
}

TEST(Blocking, AsksForTheTimeLimitOfWhatOtherProcessesMaySetEachTime) {
  TcpPair pair;
  EXPECT_EQ(deadline_of_receive(pair.fd(0), pair.socket(0)), kNoDeadline);
  set_limit(pair.fd(0), 2);
  EXPECT_NE(deadline_of_receive(pair.fd(0), pair.socket(0)), kNoDeadline);
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
  SinceEntry since;
  pollfd p{pair.fd(0), POLLOUT, 0};
  EXPECT_EQ(sleep_in_send(&p, 1000, since), 1);
  p = {pair.fd(0), POLLIN, 0};
  EXPECT_EQ(sleep_in_send(&p, 1, since), 0);
}

}  // namespace
}  // namespace clan::preload
