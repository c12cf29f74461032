#include "demote/demote.h"

#include <linux/tcp.h>

#include <chrono>

#include "preload/tcp_pair.h"
#include "stream/ending.h"
#include "stream/going_back.h"
#include "stream/readiness.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

struct Demote : testing::Test {
  Demote() { pair.migrate_and_greet(); }
  TcpPair pair;
};

TEST_F(Demote, SendsByTcpFromNowOnBehindWhatLiesInThePipe) {
  ASSERT_EQ(pair.send(0, "pipe "), 5);
  leave_pipe(pair.fd(0), false, reasons::Why::kUrgent);
  EXPECT_TRUE(sends_tcp(pair.socket(0)));
  ASSERT_EQ(pair.send(0, "tcp"), 3);
  EXPECT_EQ(pair.receive(1, 8), "pipe tcp");
  EXPECT_TRUE(sends_tcp(pair.socket(1)));  // it has answered at its look
}

TEST_F(Demote, EndsOnTcpForGoodAtBothEnds) {
  leave_pipe(pair.fd(0), false, reasons::Why::kUrgent);
  (void)pair.receive(1);
  (void)pair.receive(0);
  (void)pair.receive(1);
  EXPECT_FALSE(pair.socket(0).shared());
  EXPECT_FALSE(pair.socket(1).shared());
  EXPECT_TRUE(pair.socket(0).stays_on_tcp());
  ASSERT_EQ(::send(pair.fd(0), "ping", 4, 0), 4);
  char answer[8];
  EXPECT_EQ(::recv(pair.fd(1), answer, sizeof answer, 0), 4);
}

// Or whose process has been stopped there.
TEST_F(Demote, OfAPeerThatSaysNoMoreThanThatItLeavesHoldsUpNoCall) {
  using clan::socket_face::kLeaving;
  add_state(pair.socket(0).mine(), kLeaving);
  const auto start = std::chrono::steady_clock::now();
  for (int k = 0; k < 20; ++k) {
    EXPECT_EQ(pair.send(1, "there"), 5);
    EXPECT_EQ(pair.receive(0, 5), "there");
    EXPECT_EQ(pair.send(0, "back"), 4);
    EXPECT_EQ(pair.receive(1, 4), "back");
    EXPECT_EQ(pair.receive(1), "");
    EXPECT_EQ(errno, EAGAIN);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5))
      << "not the ten of the answer";
  EXPECT_TRUE(answers_later(pair.socket(1)));
  ASSERT_EQ(pair.send(1, "pipe "), 5);
  leave_pipe(pair.fd(0), false, reasons::Why::kUrgent);
  ASSERT_EQ(pair.send(0, "tcp"), 3);
  EXPECT_EQ(pair.receive(1), "tcp");
  EXPECT_FALSE(answers_later(pair.socket(1)));
  EXPECT_TRUE(sends_tcp(pair.socket(1)));
  ASSERT_EQ(pair.send(1, "tcp"), 3);
  EXPECT_EQ(pair.receive(0, 8), "pipe tcp");
}

// A process that shares it was stopped in the middle of the switch, or another call of it is in the
// kernel for long.
TEST(DemoteUnswitched, DoesNotWaitForASwitchThatIsUnderWay) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  ASSERT_TRUE(OpenFileState::try_close(s.open_file().sends, ::getppid()));
  const auto start = std::chrono::steady_clock::now();
  leave_pipe(pair.fd(0), false, reasons::Why::kUrgent);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_EQ(state_of(s.mine()) & (clan::socket_face::kGone | clan::socket_face::kSending),
            clan::socket_face::kGone);
  EXPECT_FALSE(s.kernel_error);
  OpenFileState::open(s.open_file().sends, ::getppid());
  EXPECT_FALSE(switch_sending(pair.fd(0), s)) << "it would send where nobody reads";
  ASSERT_EQ(pair.send(0, "tcp"), 3);
  EXPECT_EQ(pair.receive(1), "tcp");
}

// A call that was counted, and killed.
TEST_F(Demote, DoesNotWaitForCallsThatAreCountedBesideThePipe) {
  Socket& s = pair.socket(0);
  s.open_file().sends.fetch_add(1);
  leave_pipe(pair.fd(0), false, reasons::Why::kUrgent);
  EXPECT_TRUE(sends_tcp(s));
  EXPECT_FALSE(s.kernel_error);
  EXPECT_EQ(s.open_file().sends.load(), 1u);
}

// The other end has nothing unread, and makes its next call when the program has the socket.
TEST_F(Demote, CleanForAProgramThatKnowsTcpAloneNeedsNoCallOfAPeerThatIsSilent) {
  EXPECT_TRUE(pair.socket(1).pipe.want_data());  // it sleeps
  const auto start = std::chrono::steady_clock::now();
  leave_pipe(pair.fd(0), true, reasons::Why::kUrgent);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  ASSERT_EQ(pair.send(1, "later"), 5);
  std::string text(64, '\0');
  EXPECT_EQ(::recv(pair.fd(0), text.data(), text.size(), 0), 5) << "and nothing else";
  EXPECT_EQ(text.substr(0, 5), "later");
  ASSERT_EQ(::send(pair.fd(0), "back", 4, 0), 4);
  EXPECT_EQ(pair.receive(1), "back");
}

// A send of the other end that has begun before.
TEST_F(Demote, WhatIsPutIntoThePipeOfAnEndThatHasLeftIsSentAgain) {
  pair.socket(1).moving.lock();
  leave_pipe(pair.fd(0), true, reasons::Why::kUrgent);
  pair.socket(1).moving.unlock();
  char bytes[] = "late";
  const iovec io{bytes, 4};
  ASSERT_EQ(pair.socket(1).pipe.send(&io, 1).bytes, 4u);
  ASSERT_EQ(pair.send(1, "r"), 1);
  std::string text(64, '\0');
  EXPECT_EQ(::recv(pair.fd(0), text.data(), 5, MSG_WAITALL), 5);
  EXPECT_EQ(text.substr(0, 5), "later");
}

TEST_F(Demote, CleanForAProgramThatKnowsTcpAloneLosesNoByte) {
  ASSERT_EQ(pair.send(1, "unread by end 0"), 15);
  ASSERT_EQ(pair.send(0, "unread by end 1"), 15);
  leave_pipe(pair.fd(0), true, reasons::Why::kUrgent);
  EXPECT_EQ(pair.receive(1, 15), "unread by end 1");
  std::string text(64, '\0');
  const ssize_t n = ::recv(pair.fd(0), text.data(), text.size(), 0);
  ASSERT_EQ(n, 15);
  EXPECT_EQ(text.substr(0, 15), "unread by end 0");
  ASSERT_EQ(::send(pair.fd(0), "more", 4, 0), 4);
  EXPECT_EQ(pair.receive(1), "more");
}

TEST(DemoteFull, CleanForAProgramThatKnowsTcpAloneLeavesNoGapWhereTcpIsFull) {
  for (const std::size_t size : {70'000u, 100'000u, 130'000u, 150'000u, 170'000u, 190'000u}) {
    TcpPair pair;
    pair.migrate_and_greet();
    const int small = 4096;
    ASSERT_EQ(::setsockopt(pair.fd(1), SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    ASSERT_EQ(pair.send(1, std::string(size, 'x')), static_cast<ssize_t>(size));
    leave_pipe(pair.fd(0), true, reasons::Why::kExecuted);
    std::string all(size, 0);
    EXPECT_EQ(::recv(pair.fd(0), all.data(), size, MSG_WAITALL), static_cast<ssize_t>(size));
    EXPECT_EQ(all, std::string(size, 'x'));
    ASSERT_EQ(pair.send(1, "behind", MSG_NOSIGNAL), 6);
    EXPECT_EQ(::recv(pair.fd(0), all.data(), 6, MSG_WAITALL), 6);
  }
}

TEST_F(Demote, SendsAgainInItsOrderWhatAPeerHasSentThatHasGoneBackBefore) {
  ASSERT_EQ(pair.send(1, "unread "), 7);
  leave_pipe(pair.fd(1), false, reasons::Why::kUrgent);
  ASSERT_EQ(pair.send(1, "by TCP"), 6);
  leave_pipe(pair.fd(0), true, reasons::Why::kExecuted);
  if (pair.socket(0).kernel_error) GTEST_SKIP() << "no pidfd_getfd";
  std::string text(13, '\0');
  EXPECT_EQ(::recv(pair.fd(0), text.data(), text.size(), MSG_WAITALL), 13);
  EXPECT_EQ(text, "unread by TCP");
}

TEST_F(Demote, LeavesWhatCameByTcpBeforeTheSwitchInFrontOfWhatIsSentAgain) {
  TcpPair other;
  ASSERT_EQ(::send(other.fd(1), "first ", 6, 0), 6);
  other.migrate();
  ASSERT_TRUE(switch_sending(other.fd(1), other.socket(1)));
  ASSERT_EQ(other.send(1, "second"), 6);
  leave_pipe(other.fd(0), true, reasons::Why::kExecuted);
  std::string text(12, '\0');
  EXPECT_EQ(::recv(other.fd(0), text.data(), text.size(), MSG_WAITALL), 12);
  EXPECT_EQ(text, "first second");
}

TEST_F(Demote, NeverMovesASocketThatWasPinned) {
  TcpPair other;
  never_move(other.fd(0), other.socket(0), reasons::Why::kSpliced);
  EXPECT_TRUE(other.socket(0).stays_on_tcp());
  EXPECT_EQ(other.socket(0).slot->pinned.load(), 1);
}

TEST(DemoteUnjoined, TakesAnEndBackWhosePeerNeverCame) {
  TcpPair pair;
  auto made = Pipe::create(socket_face::kMemfdName, ring_bytes(), 1);
  ASSERT_TRUE(made);
  pair.socket(1).pipe = std::move(*made);
  Route route;
  ASSERT_TRUE(route_of(pair.fd(1), &route));
  ASSERT_TRUE(enter_pipe(pair.fd(1), pair.socket(1), route));
  ASSERT_EQ(pair.send(1, "by tcp"), 6);
  EXPECT_TRUE(leave_alone(pair.fd(1), pair.socket(1)));
  EXPECT_TRUE(pair.socket(1).stays_on_tcp());
  char text[8];
  EXPECT_EQ(::recv(pair.fd(0), text, sizeof text, 0), 6);
}

}  // namespace
}  // namespace clan::preload
