#include "preload/wait/set.h"
#include "state/face.h"
#include "stream/bell.h"
#include "stream/ending.h"
#include "tcp/aborted.h"

namespace clan::preload {
namespace {

using namespace socket_face;

/// End 1 is the victim.
struct StrayBytes : EpollSet {
  StrayBytes() { EXPECT_EQ(pair.receive(1), ""); }
  void send_by_tcp(int bytes = 1) const {
    for (; bytes > 0; --bytes) EXPECT_EQ(sys::send(pair.fd(0), "x", 1, MSG_NOSIGNAL), 1);
  }
  bool reset() const { return reset_for_strays(pair.fd(1), pair.socket(1)); }
};

TEST_F(StrayBytes, AreNotThereOfAnHonestEnd) {
  EXPECT_FALSE(reset());
  ring(pair.fd(0), pair.socket(0));
  EXPECT_FALSE(reset());
}

TEST_F(StrayBytes, AreNotWhatAnApplicationSendsThatIsBackOnTcp) {
  add_state(pair.socket(0).mine(), kGone);
  send_by_tcp(3);
  EXPECT_FALSE(reset());
}

// Which would spin for ever, its time limit notwithstanding.
TEST_F(StrayBytes, EndABlockingReceiveAtOnce) {
  send_by_tcp(2);
  EXPECT_EQ(pair.receive(1, 1, 0), "");
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_EQ(pair.receive(0), "");
  EXPECT_EQ(pair.send(0, "x"), -1) << "the other end is told";
}

TEST_F(StrayBytes, EndAWaitInASet) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  send_by_tcp();
  EXPECT_NE(told(5'000) & EPOLLERR, 0u);
}

TEST_F(StrayBytes, AreSeenByALookAtTheKernel) {
  send_by_tcp();
  poll_tcp_socket(pair.fd(1), pair.socket(1));
  EXPECT_TRUE(pair.socket(1).kernel_error);
}

TEST_F(StrayBytes, AreNotAskedForWhileBytesOfBeforeTheSwitchLieThere) {
  TcpPair other;
  other.open_pipe();
  ASSERT_EQ(other.send(0, "before"), 6);
  for (const int end : {1, 0}) other.enter(end);
  EXPECT_FALSE(reset_for_strays(other.fd(1), other.socket(1)));
  EXPECT_EQ(other.receive(1), "before");
}

}  // namespace
}  // namespace clan::preload
