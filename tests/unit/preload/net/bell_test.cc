#include "net/bell.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "clan/face/socket_face.h"
#include "preload/tcp_pair.h"
#include "state/face.h"
#include "state/remote.h"

namespace clan::preload {
namespace {

bool readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, 0) > 0;
}

// End 0 is carried, and the other end has parked its byte.
class NetBell : public ::testing::Test {
 protected:
  NetBell() {
    pair_.migrate();
    auto& s = pair_.socket(0);
    s.drained.store(true);
    add_state(s.theirs(), socket_face::kSending);
    EXPECT_TRUE(park_byte(pair_.fd(1)));
    pollfd p{pair_.fd(0), POLLIN, 0};
    EXPECT_EQ(::poll(&p, 1, 5000), 1);
    begin_bells(s);
    EXPECT_TRUE(take_bells(pair_.fd(0), s, ~std::uint64_t{0}));
  }
  Socket& s() { return pair_.socket(0); }
  int fd() const { return pair_.fd(0); }
  TcpPair pair_;
};

TEST_F(NetBell, AParkedByteDoesNotMakeTheSocketReadable) { EXPECT_FALSE(readable(fd())); }

TEST_F(NetBell, ThatIsRungMakesItReadableUntilItIsTakenAway) {
  ring_here(fd(), s());
  EXPECT_TRUE(readable(fd()));
  EXPECT_TRUE(take_bells(fd(), s(), ~std::uint64_t{0}));
  EXPECT_FALSE(readable(fd()));
}

TEST_F(NetBell, WakesEpollEdgeByEdge) {
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{EPOLLIN | EPOLLET, {}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, fd(), &event), 0);
  EXPECT_EQ(::epoll_wait(set, &event, 1, 0), 0);
  for (int i = 0; i < 3; ++i) {  // one that has not been taken away is no reason not to ring again
    ring_here(fd(), s());
    EXPECT_EQ(::epoll_wait(set, &event, 1, 0), 1) << i;
    EXPECT_EQ(::epoll_wait(set, &event, 1, 0), 0) << i;
  }
  ::close(set);
}

TEST_F(NetBell, RungSinceIsNotTakenAway) {
  ring_here(fd(), s());
  const std::uint64_t known = s().remote_rings.load();
  ring_here(fd(), s());
  EXPECT_TRUE(take_bells(fd(), s(), known));
  EXPECT_TRUE(readable(fd()));
}

TEST_F(NetBell, WhenItIsTcpsAgainTheParkedByteIsStillToBeRead) {
  ring_here(fd(), s());
  end_bells(fd(), s());
  EXPECT_FALSE(take_bells(fd(), s(), ~std::uint64_t{0}));
  EXPECT_TRUE(has_parked_byte(s()));
  EXPECT_TRUE(readable(fd()));
}

}  // namespace
}  // namespace clan::preload
