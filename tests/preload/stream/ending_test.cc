#include "stream/ending.h"

#include <csignal>

#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

TEST(Ending, OfAPipeThatIsBrokenReadsAsAReset) {
  Pipe::Done done;
  EXPECT_FALSE(failed(done));
  done.err = EPROTO;
  EXPECT_TRUE(failed(done));
  EXPECT_EQ(errno, ECONNRESET);
  done.err = EFAULT;
  EXPECT_TRUE(failed(done));
  EXPECT_EQ(errno, EFAULT);
  done.err = EDEADLK;
  EXPECT_TRUE(failed(done));
  EXPECT_EQ(errno, EAGAIN);
}

TEST(Ending, IsToldAsAResetOnce) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  EXPECT_FALSE(was_reset(s));
  s.kernel_error.set();
  s.theirs().words[socket_face::kState].fetch_or(socket_face::kReset);
  EXPECT_TRUE(was_reset(s));
  EXPECT_EQ(ended(s), -1);
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_EQ(ended(s), 0);
}

TEST(Ending, IsSeenWhenThePeerHasClosed) {
  TcpPair pair;
  pair.migrate();
  ASSERT_EQ(pair.send(1, "x"), 1);
  ASSERT_EQ(pair.receive(0), "x");
  look_for_end(pair.fd(0), pair.socket(0));
  EXPECT_FALSE(pair.socket(0).kernel_end);
  pair.close(1);
  look_for_end(pair.fd(0), pair.socket(0));
  EXPECT_TRUE(pair.socket(0).kernel_end);
}

TEST(Ending, IsLookedForNowAndThen) {
  Socket s;
  EXPECT_TRUE(check_due(s));
  EXPECT_FALSE(check_due(s));
}

TEST(Ending, WithoutMsgNosignalIsASignal) {
  static volatile sig_atomic_t signals = 0;
  const auto before = std::signal(SIGPIPE, [](int) { signals = signals + 1; });
  EXPECT_EQ(broken_pipe(MSG_NOSIGNAL), -1);
  EXPECT_EQ(signals, 0);
  EXPECT_EQ(broken_pipe(0), -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_EQ(signals, 1);
  std::signal(SIGPIPE, before);
}

}  // namespace
}  // namespace clan::preload
