#include "stream/owed_end.h"

#include <poll.h>

#include <chrono>

#include "migrate/demote.h"
#include "preload/tcp_pair.h"
#include "stream/close.h"
#include "stream/held_up.h"
#include "stream/poll_tcp.h"
#include "stream/readiness.h"

namespace clan::preload {
namespace {

struct OwedEnd : testing::Test {
  OwedEnd() { pair.migrate_and_greet(); }
  ~OwedEnd() override {
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8))
        << "not the ten of one wait";
  }
  std::atomic<std::uint32_t>& lock() const {
    return pair.socket(0).pipe.page().ends[pair.socket(0).pipe.end()].sender.lock;
  }
  void expect_owed() const {
    EXPECT_TRUE(owes_end(pair.socket(0)));
    EXPECT_TRUE(is_held_up(pair.socket(0)));
    EXPECT_EQ(pair.send(0, "z"), -1);
    EXPECT_EQ(errno, EPIPE);
    EXPECT_NE(readiness(pair.fd(0), pair.socket(0), true) & POLLOUT, 0) << "a send answers at once";
    EXPECT_EQ(pair.receive(1), "");
    EXPECT_EQ(errno, EAGAIN);
  }
  void expect_told() const {
    (void)look_at_kernel(pair.fd(0), pair.socket(0));
    EXPECT_FALSE(owes_end(pair.socket(0)));
    EXPECT_FALSE(is_held_up(pair.socket(0)));
    EXPECT_EQ(pair.receive(1), "");
    EXPECT_EQ(errno, 0);
    EXPECT_EQ(pair.send(1, "answer"), 6);
    EXPECT_EQ(pair.receive(0), "answer");
  }
  TcpPair pair;
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
};

TEST_F(OwedEnd, OfAShutdownWhileTheLockIsTakenIsToldLater) {
  lock().store(static_cast<std::uint32_t>(::getppid()));
  EXPECT_EQ(shared_shutdown(pair.fd(0), pair.socket(0), SHUT_WR), 0);
  expect_owed();
  lock().store(0);
  expect_told();
}

// A send by TCP that has not ended, or a process that was stopped in the middle of the switch.
TEST(OwedEndOfTcp, IsToldWhenItsBytesGoByThePipe) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  ASSERT_TRUE(Slot::try_close(s.open_file().sends, ::getppid()));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(shared_shutdown(pair.fd(0), s, SHUT_WR), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
  EXPECT_TRUE(owes_end(s));
  Slot::open(s.open_file().sends, ::getppid());
  (void)look_at_kernel(pair.fd(0), s);
  EXPECT_EQ(pair.receive(1), "");
  EXPECT_EQ(errno, 0);
}

TEST_F(OwedEnd, IsTheLastRecordOfAnEndThatGoesBackToTcp) {
  lock().store(static_cast<std::uint32_t>(::getppid()));
  EXPECT_EQ(shared_shutdown(pair.fd(0), pair.socket(0), SHUT_WR), 0);
  lock().store(0);
  leave_pipe(pair.fd(0), false, reasons::Why::kUrgent);
  EXPECT_EQ(pair.receive(1), "");
  EXPECT_EQ(errno, 0);
  EXPECT_EQ(pair.send(1, "answer"), 6) << errno;
  EXPECT_EQ(pair.receive(0), "answer");
}

}  // namespace
}  // namespace clan::preload
