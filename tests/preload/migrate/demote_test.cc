#include "migrate/demote.h"

#include <linux/tcp.h>

#include <chrono>

#include "preload/tcp_pair.h"
#include "stream/held_up.h"
#include "stream/poll_tcp.h"
#include "stream/readiness.h"
#include "stream/tcp_prefix.h"

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

TEST_F(Demote, TcpHasTheOptionsOfTheProgramAgain) {
  const auto nodelay = [&](int end) {
    int value = -1;
    socklen_t size = sizeof value;
    EXPECT_EQ(sys::getsockopt(pair.fd(end), IPPROTO_TCP, TCP_NODELAY, &value, &size), 0);
    return value;
  };
  for (const int end : {0, 1}) EXPECT_NE(nodelay(end), 0) << "doorbells are not delayed";
  leave_pipe(pair.fd(0), false, reasons::Why::kUrgent);
  for (const int end : {1, 0, 1}) (void)pair.receive(end);
  for (const int end : {0, 1}) EXPECT_EQ(nodelay(end), 0);
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

// The other end can write the word that says what rings.
TEST_F(Demote, OfAPeerThatNamesALivingThreadAsRingingHoldsUpNoCall) {
  using namespace clan::socket_face;
  const auto other =
      static_cast<std::uint64_t>(::getppid()) << kRinger | kRingerSends | kSendsDoorbell | 1;
  for (const bool lets_go : {true, false}) {
    TcpPair one;
    one.migrate();
    ASSERT_EQ(one.send(0, "x"), 1);
    ASSERT_EQ(one.receive(1), "x");
    ASSERT_EQ(one.send(1, "y"), 1);
    ASSERT_EQ(one.receive(0), "y");
    Socket& s = one.socket(1);
    s.mine().words[kBells].store(other);
    const auto start = std::chrono::steady_clock::now();
    leave_pipe(one.fd(0), false, reasons::Why::kUrgent);
    for (int k = 0; k < 20; ++k) (void)one.receive(1);
    EXPECT_TRUE(answers_later(s));
    EXPECT_EQ(one.send(1, "pipe"), 4);
    if (lets_go) {
      s.mine().words[kBells].store(0);
    } else {
      s.answer_wanted_ns.fetch_sub(11'000'000'000u);  // which is too long
    }
    (void)look_at_kernel(one.fd(1), s);
    EXPECT_FALSE(answers_later(s));
    EXPECT_EQ(s.kernel_error, !lets_go);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
    if (lets_go) {
      EXPECT_EQ(one.receive(0), "pipe");
    }
  }
}

// A thread of this end rings for long, while the other one leaves and is done.
TEST_F(Demote, TellsOfNoEndBeforeWhatCameByTcp) {
  using namespace clan::socket_face;
  Socket& s = pair.socket(1);
  const auto other =
      static_cast<std::uint64_t>(::getppid()) << kRinger | kRingerSends | kSendsDoorbell | 1;
  s.mine().words[kBells].store(other);
  leave_pipe(pair.fd(0), false, reasons::Why::kUrgent);
  ASSERT_EQ(pair.send(0, "by tcp"), 6);
  ASSERT_EQ(::shutdown(pair.fd(0), SHUT_WR), 0);
  for (int k = 0; k < 3; ++k) {
    EXPECT_EQ(pair.receive(1), "");
    EXPECT_EQ(errno, EAGAIN) << "it is no end";
    EXPECT_EQ(pair.send(1, "lost?"), -1);
    EXPECT_EQ(errno, EAGAIN) << "nobody knows whether it is to go by TCP";
    EXPECT_EQ(readiness(pair.fd(1), s, true), 0);
  }
  s.mine().words[kBells].store(0);
  EXPECT_EQ(pair.receive(1), "by tcp");
  EXPECT_EQ(pair.receive(1), "");
  EXPECT_EQ(errno, 0);
  ASSERT_EQ(pair.send(1, "back"), 4);
  EXPECT_EQ(pair.receive(0), "back");
}

// By its own wish, while another process keeps it from doing so at once.
TEST_F(Demote, IsDoneLaterWhileAnotherHasTheLock) {
  Socket& s = pair.socket(0);
  auto& lock = s.pipe.page().ends[s.pipe.end()].sender.lock;
  lock.store(static_cast<std::uint32_t>(::getppid()));
  const auto start = std::chrono::steady_clock::now();
  leave_pipe(pair.fd(0), false, reasons::Why::kUrgent);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_FALSE(sends_tcp(s));
  EXPECT_TRUE(answers_later(s));
  EXPECT_EQ(pair.send(0, "!", MSG_OOB | MSG_DONTWAIT | MSG_NOSIGNAL), -1)
      << "it would be no urgent byte";
  EXPECT_EQ(errno, EAGAIN);
  lock.store(0);
  (void)look_at_kernel(pair.fd(0), s);
  EXPECT_TRUE(sends_tcp(s));
  EXPECT_FALSE(s.kernel_error);
  ASSERT_EQ(pair.send(0, "tcp"), 3);
  EXPECT_EQ(pair.receive(1), "tcp");
}

// A process that shares it was stopped in the middle of the switch, or another call of it is in the
// kernel for long.
TEST(DemoteUnswitched, DoesNotWaitForASwitchThatIsUnderWay) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  ASSERT_TRUE(Slot::try_close(s.open_file().sends, ::getppid()));
  const auto start = std::chrono::steady_clock::now();
  leave_pipe(pair.fd(0), false, reasons::Why::kUrgent);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_EQ(state_of(s.mine()) & (clan::socket_face::kGone | clan::socket_face::kSending),
            clan::socket_face::kGone);
  EXPECT_FALSE(s.kernel_error);
  Slot::open(s.open_file().sends, ::getppid());
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

// Both want to, and the other one says no more.
TEST_F(Demote, CleanForAProgramThatKnowsTcpAloneDoesNotWaitForASilentPeer) {
  add_state(pair.socket(1).mine(), clan::socket_face::kLeaving);
  const auto start = std::chrono::steady_clock::now();
  leave_pipe(pair.fd(0), true, reasons::Why::kUrgent);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_EQ(::recv(pair.fd(0), nullptr, 0, MSG_DONTWAIT) == 0 &&
                ::send(pair.fd(0), "x", 1, MSG_NOSIGNAL) == 1,
            false);
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
    std::size_t got = 0;
    ssize_t n = 0;
    while (got < size && (n = ::recv(pair.fd(0), &all[got], size - got, MSG_DONTWAIT)) > 0)
      got += static_cast<std::size_t>(n);
    EXPECT_TRUE(got == size || (n < 0 && errno != EAGAIN)) << got << " of " << size;
  }
}

TEST_F(Demote, NeverMovesASocketThatWasPinned) {
  TcpPair other;
  never_move(other.fd(0), other.socket(0), reasons::Why::kSpliced);
  EXPECT_TRUE(other.socket(0).stays_on_tcp());
  EXPECT_EQ(other.socket(0).slot.load()->pinned.load(), 1);
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
