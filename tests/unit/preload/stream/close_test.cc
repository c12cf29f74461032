#include "stream/close.h"

#include <poll.h>

#include <thread>

#include "preload/tcp_pair.h"
#include "stream/ending.h"

namespace clan::preload {
namespace {

struct Close : testing::Test {
  Close() { pair.migrate(); }
  TcpPair pair;
};

TEST_F(Close, WithUnreadBytesIsAResetForThePeer) {
  ASSERT_EQ(pair.send(0, "x"), 1);
  ASSERT_EQ(pair.receive(1), "x");
  ASSERT_EQ(pair.send(0, "unread"), 6);
  pair.close(1);
  EXPECT_EQ(pair.receive(0), "");
  EXPECT_EQ(errno, ECONNRESET);
}

TEST_F(Close, OfOneOfTwoDescriptorsIsNone) {
  const int copy = ::dup(pair.fd(0));
  ASSERT_TRUE(duplicate_entry(pair.fd(0), copy));
  forget(copy);
  ::close(copy);
  ASSERT_EQ(pair.send(0, "on"), 2);
  EXPECT_EQ(pair.receive(1), "on");
}

TEST_F(Close, OfOneDirectionLeavesTheOther) {
  ASSERT_EQ(shared_shutdown(pair.fd(0), pair.socket(0), SHUT_WR), 0);
  EXPECT_EQ(pair.receive(1), "");
  EXPECT_EQ(errno, 0);
  ASSERT_EQ(pair.send(1, "answer"), 6);
  EXPECT_EQ(pair.receive(0), "answer");
}

TEST_F(Close, OfADirectionWhereNothingIsConnectedAnyMoreSaysSo) {
  for (const int end : {0, 1}) {
    ASSERT_EQ(shared_shutdown(pair.fd(end), pair.socket(end), SHUT_WR), 0);
  }
  for (const int how : {SHUT_WR, SHUT_RD, SHUT_RDWR}) {
    EXPECT_EQ(shared_shutdown(pair.fd(0), pair.socket(0), how), -1);
    EXPECT_EQ(errno, ENOTCONN);
  }
}

struct HalfClose : testing::Test {
  // End 1 has half-closed: end 0 reads that, and what it sends then arrives.
  void expect_the_other_way_goes_on() {
    EXPECT_EQ(pair.receive(0), "");
    EXPECT_EQ(errno, 0);
    for (const std::string rest : {"the", " rest"}) {
      ASSERT_EQ(pair.send(0, rest), static_cast<ssize_t>(rest.size()));
      EXPECT_EQ(pair.receive(1), rest);
    }
  }
  TcpPair pair;
};

TEST_F(HalfClose, BeforeTheOtherEndHasComeIntoThePipeLosesNothing) {
  pair.open_pipe();
  pair.enter(1);
  ASSERT_EQ(shared_shutdown(pair.fd(1), pair.socket(1), SHUT_WR), 0);
  pair.enter(0);
  expect_the_other_way_goes_on();
}

TEST_F(HalfClose, WaitsForASendThatIsUnderWay) {
  pair.migrate();
  Socket& s = pair.socket(1);
  std::thread closer;
  {
    const OpenFileState::UnderWay send(s.slot->sends);
    closer = std::thread([&] { EXPECT_EQ(shared_shutdown(pair.fd(1), s, SHUT_WR), 0); });
    pollfd p{pair.fd(0), POLLRDHUP, 0};
    EXPECT_EQ(::poll(&p, 1, 30), 0) << "TCP has told of an end";
  }
  closer.join();
  poll_tcp_socket(pair.fd(1), s);  // as each later call does
  expect_the_other_way_goes_on();
}

}  // namespace
}  // namespace clan::preload
