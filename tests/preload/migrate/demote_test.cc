#include "migrate/demote.h"

#include "preload/tcp_pair.h"
#include "stream/tcp_prefix.h"

namespace clan::preload {
namespace {

struct Demote : testing::Test {
  Demote() {
    pair.migrate();
    EXPECT_EQ(pair.send(0, "x"), 1);
    EXPECT_EQ(pair.receive(1), "x");
    EXPECT_EQ(pair.send(1, "y"), 1);
    EXPECT_EQ(pair.receive(0), "y");
  }
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
