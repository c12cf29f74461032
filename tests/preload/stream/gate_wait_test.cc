#include "stream/gate_wait.h"

#include <poll.h>
#include <sys/wait.h>

#include "clan/clock.h"
#include "preload/tcp_pair.h"
#include "stream/doorbell.h"
#include "stream/held_up.h"
#include "stream/readiness.h"
#include "support/process.h"

namespace clan::preload {
namespace {

/// Of a connection whose bytes are TCP's so far, and whose gates another process has closed that
/// lives.
struct ShutGate : testing::Test {
  ShutGate() {
    EXPECT_EQ(::send(pair.fd(0), "tcp", 3, 0), 3);
    pair.migrate();
  }
  short of(int end) const { return readiness(pair.fd(end), pair.socket(end), true); }
  static void shut(Slot::Counter& gate, std::int32_t closer) {
    ASSERT_TRUE(Slot::try_close(gate, closer));
  }
  const std::int32_t other = closer_id() - thread_id() + ::getppid();
  TcpPair pair;
};

TEST_F(ShutGate, OfSendsIsNoRoomUntilItIsOpen) {
  Socket& s = pair.socket(0);
  Slot::Counter& gate = s.open_file().sends;
  shut(gate, other);
  EXPECT_NE(of(0) & POLLOUT, 0) << "nobody has found it shut yet";
  const std::uint32_t before = s.full.load();
  for (int k = 0; k < 1000; ++k) {  // one that waits for a moment, and many that do not
    EXPECT_EQ(pair.send(0, "x"), -1);
    EXPECT_EQ(errno, EAGAIN);
  }
  EXPECT_NE(s.full.load(), before) << "no edge";
  EXPECT_TRUE(is_held_up(s));
  EXPECT_EQ(of(0) & POLLOUT, 0);
  Slot::open(gate, other);
  EXPECT_FALSE(is_held_up(s));
  EXPECT_NE(of(0) & POLLOUT, 0);
  EXPECT_EQ(pair.send(0, "more"), 4);
  EXPECT_EQ(pair.receive(1), "tcpmore");
}

TEST_F(ShutGate, OfReceivesIsNothingToReadUntilItIsOpen) {
  Socket& s = pair.socket(1);
  Slot::Counter& gate = s.open_file().receives;
  shut(gate, other);
  const std::uint32_t before = s.held_up.load();
  for (int k = 0; k < 1000; ++k) {
    EXPECT_EQ(pair.receive(1), "");
    EXPECT_EQ(errno, EAGAIN);
  }
  EXPECT_NE(s.held_up.load(), before) << "no edge";
  EXPECT_TRUE(is_held_up(s));
  EXPECT_EQ(of(1) & POLLIN, 0);
  EXPECT_EQ(bytes_to_read(pair.fd(1), s), 0);
  EXPECT_FALSE(swallow_doorbells(pair.fd(1), s));
  Slot::open(gate, other);
  EXPECT_NE(of(1) & POLLIN, 0);
  EXPECT_EQ(pair.receive(1), "tcp");
  EXPECT_FALSE(is_held_up(s));
}

// It could be stopped there, too.
TEST_F(ShutGate, EndsTheConnectionWhereTheOwnerIsOfAnotherPidNamespaceAndNotSeen) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  Socket& s = pair.socket(1);
  shut(s.open_file().receives, (closer_id() ^ 1 << 23) - thread_id() + child);
  for (int k = 0; k < 10'000 && !s.kernel_error; ++k, ::usleep(10'000)) (void)pair.receive(1);
  EXPECT_TRUE(s.kernel_error);
}

// Its owner has been killed.
TEST_F(ShutGate, IsOpenedInThePlaceOfTheDead) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  Socket& s = pair.socket(1);
  const std::int32_t dead = closer_id() - thread_id() + child;
  shut(s.open_file().receives, dead);
  shut(pair.socket(0).open_file().sends, dead);
  std::string received;
  for (int k = 0; k < 1000 && received.empty(); ++k, ::usleep(10'000)) received = pair.receive(1);
  EXPECT_EQ(received, "tcp");
  ssize_t sent = -1;
  for (int k = 0; k < 1000 && sent < 0; ++k, ::usleep(10'000)) {
    // a program that waits for room does not send
    sent = (of(0) & POLLOUT) != 0 ? pair.send(0, "x") : -1;
  }
  EXPECT_EQ(sent, 1);
  EXPECT_FALSE(pair.socket(0).kernel_error);
}

TEST_F(ShutGate, OfAProcessThatLivesEndsTheConnectionWhenItsBudgetIsUsed) {
  Socket& s = pair.socket(1);
  s.pipe.owner_waits().spend(monotonic_ns(), WaitBudget::kMostNs - 100'000'000);  // as above
  shut(s.open_file().receives, other);
  for (int k = 0; k < 10'000 && !s.kernel_error; ++k, ::usleep(10'000)) (void)pair.receive(1);
  EXPECT_TRUE(s.kernel_error);
}

// As a program does that is stopped; and it is not taken for hung.
TEST_F(ShutGate, OfAStoppedProcessEndsNothing) {
  test::Process stopped = test::Process::start([] { return ::pause(); });
  stopped.stop();
  Socket& s = pair.socket(1);
  // a tenth of a second is left
  s.pipe.owner_waits().spend(monotonic_ns(), WaitBudget::kMostNs - 100'000'000);
  Slot::Counter& gate = s.open_file().receives;
  const std::int32_t closer = closer_id() - thread_id() + stopped.pid();
  shut(gate, closer);
  for (int k = 0; k < 50; ++k, ::usleep(10'000)) EXPECT_EQ(pair.receive(1), "");
  EXPECT_FALSE(s.kernel_error);
  Slot::open(gate, closer);
  EXPECT_EQ(pair.receive(1), "tcp");
}

}  // namespace
}  // namespace clan::preload
