#include "stream/ending.h"

#include <linux/bpf.h>

#include <csignal>

#include "preload/tcp_pair.h"
#include "stream/close.h"

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
  EXPECT_EQ(reset_of(s), 0);
  s.kernel_error.set();
  s.theirs().words[socket_face::kState].fetch_or(socket_face::kReset);
  EXPECT_EQ(reset_of(s), ECONNRESET);
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

TEST(Ending, HasTheStateThatTcpWouldHave) {
  TcpPair pair;
  pair.migrate_and_greet();
  const auto state = [&pair](int end) { return tcp_state(pair.fd(end), pair.socket(end)); };
  EXPECT_EQ(state(0), BPF_TCP_ESTABLISHED);
  ASSERT_EQ(shared_shutdown(pair.fd(1), pair.socket(1), SHUT_WR), 0);
  EXPECT_EQ(state(0), BPF_TCP_CLOSE_WAIT);
  EXPECT_EQ(state(1), BPF_TCP_FIN_WAIT2);
  ASSERT_EQ(shared_shutdown(pair.fd(0), pair.socket(0), SHUT_WR), 0);
  for (const int end : {0, 1}) EXPECT_EQ(state(end), BPF_TCP_CLOSE);
}

TEST(Ending, OfThePeerAnswersTheFirstSendByAReset) {
  TcpPair pair;
  pair.migrate_and_greet();
  pair.close(1);
  Socket& s = pair.socket(0);
  EXPECT_EQ(pair.send(0, "x"), 1);
  EXPECT_EQ(tcp_state(pair.fd(0), s), BPF_TCP_CLOSE);
  EXPECT_EQ(take_error(pair.fd(0), s), EPIPE);
  EXPECT_EQ(take_error(pair.fd(0), s), 0) << "it is told once";
  EXPECT_EQ(pair.send(0, "x"), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST(Ending, IsLookedForNowAndThen) {
  Socket s;
  EXPECT_TRUE(check_due(s));
  // Unless the thread loses the processor in between.
  const auto once_not = [&s](auto&& prepare) {
    for (int k = 0; k < 10'000; ++k) {
      prepare();
      if (!check_due(s)) return true;
    }
    return false;
  };
  EXPECT_TRUE(once_not([&s] { s.glanced = 0, note_checked(s); }));
  EXPECT_TRUE(once_not([&s] { s.glanced = order_stamp(), s.checked_ns = 0; }))
      << "no clock is read";
  s.glanced = s.checked_ns = 0;
  EXPECT_TRUE(check_due(s));
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
