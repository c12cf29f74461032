#include <poll.h>

#include "preload/tcp_pair.h"
#include "state/face.h"
#include "stream/close.h"
#include "stream/ending.h"

namespace clan::preload {
namespace {

/// Nothing is on its way, nor left in TCP.
struct LookAtTcp : testing::Test {
  LookAtTcp() {
    pair.migrate();
    EXPECT_EQ(pair.send(0, "x"), 1);
    EXPECT_EQ(pair.receive(1), "x");
    poll_tcp_socket(fd, s);
  }
  bool kernel_says_readable() const {
    pollfd p{fd, POLLIN, 0};
    return ::poll(&p, 1, 0) == 1;
  }
  TcpPair pair;
  const int fd = pair.fd(1);
  Socket& s = pair.socket(1);
};

TEST_F(LookAtTcp, FindsTheEndOfThePeer) {
  pair.close(0);
  pollfd p{fd, POLLIN, 0};
  ASSERT_EQ(::poll(&p, 1, 5'000), 1);
  poll_tcp_socket(fd, s);
  EXPECT_TRUE(s.kernel_end);
}

TEST_F(LookAtTcp, ReadsNothingOfASocketThatIsBackOnTcp) {
  s.back_in = true;
  ASSERT_EQ(::send(pair.fd(0), "x", 1, 0), 1);
  poll_tcp_socket(fd, s);
  EXPECT_TRUE(kernel_says_readable()) << "the byte is the application's";
  s.back_in = false;
}

TEST_F(LookAtTcp, CountsBytesOfTcpAndOfThePipeTogetherUntilTheEnd) {
  EXPECT_TRUE(enough_bytes(s)) << "one is always enough";
  s.low_water = 5;
  EXPECT_FALSE(enough_bytes(s));
  EXPECT_TRUE(enough_bytes(s, 5));
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_FALSE(enough_bytes(s, 1));
  EXPECT_TRUE(enough_bytes(s, 2));
  ASSERT_EQ(shared_shutdown(pair.fd(0), pair.socket(0), SHUT_WR), 0);
  EXPECT_TRUE(enough_bytes(s)) << "no more will come";
}

}  // namespace
}  // namespace clan::preload
