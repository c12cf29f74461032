// When the two ends of a connection look for each other.
#include "migrate/policy.h"

#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

TEST(Policy, MovesAConnectionAfterSomeCallsOfBothEnds) {
  TcpPair pair;
  for (int call = 0; call < 64 && !(pair.socket(0).shared() && pair.socket(1).shared()); ++call) {
    before_send(pair.fd(0), pair.socket(0));
    after_receive(pair.fd(1), pair.socket(1));
    if (pair.socket(0).shared() || pair.socket(1).shared()) continue;
    ASSERT_EQ(::send(pair.fd(0), "x", 1, 0), 1);
    char byte;
    ASSERT_EQ(::recv(pair.fd(1), &byte, 1, 0), 1);
    for (const int end : {0, 1}) pair.count(end);
  }
  EXPECT_TRUE(pair.socket(0).shared());
  EXPECT_TRUE(pair.socket(1).shared());
}

TEST(Policy, OffersNothingForAConnectionThatIsUsedOnce) {
  TcpPair pair;
  before_send(pair.fd(0), pair.socket(0));
  EXPECT_EQ(pair.socket(0).state.load(), Socket::State::kTcp);
  EXPECT_EQ(pair.socket(0).sends.load(), 1u);
}

TEST(Policy, LeavesASocketToTheEndThatHasAccepted) {
  TcpPair pair;
  for (int call = 0; call < 8; ++call) before_send(pair.fd(1), pair.socket(1));
  EXPECT_NE(pair.socket(1).state.load(), Socket::State::kOffered);
}

TEST(Policy, KeepsASocketOnTcpThatIsPinned) {
  TcpPair pair;
  pair.socket(0).open_file().pinned = 1;
  before_send(pair.fd(0), pair.socket(0));
  EXPECT_EQ(pair.socket(0).state.load(), Socket::State::kKernel);
}

TEST(Policy, WaitsWhileADescriptorIsOnItsWayToAnotherProcess) {
  TcpPair pair;
  OpenFileState& slot = pair.socket(0).open_file();
  slot.held.fetch_add(OpenFileState::kOnItsWay);
  for (int call = 0; call < 8; ++call) before_send(pair.fd(0), pair.socket(0));
  EXPECT_EQ(pair.socket(0).state.load(), Socket::State::kTcp);
  slot.held.fetch_sub(OpenFileState::kOnItsWay);
  before_send(pair.fd(0), pair.socket(0));
  EXPECT_EQ(pair.socket(0).state.load(), Socket::State::kOffered);
}

TEST(Policy, WaitsWhileAnotherProcessHasTheSocket) {
  TcpPair pair;
  Socket& s = pair.socket(0);
  s.open_file().held.fetch_add(OpenFileState::kProcess);
  for (int call = 0; call < 8; ++call) before_send(pair.fd(0), s);
  EXPECT_EQ(s.state.load(), Socket::State::kTcp);
  EXPECT_EQ(s.said.load(), reasons::Why::kSeveral);
  s.open_file().held.fetch_sub(OpenFileState::kProcess);
  before_send(pair.fd(0), s);
  EXPECT_EQ(s.state.load(), Socket::State::kOffered);
}

// Without a sign of the other end.
TEST(Policy, GivesUpInTheEnd) {
  TcpPair pair;
  Socket& s = pair.socket(1);
  s.receives = 1u << 20;
  s.offered_ns = 1;
  for (int call = 0; call < 4 && s.state.load() == Socket::State::kTcp; ++call) {
    after_receive(pair.fd(1), s);
  }
  EXPECT_EQ(s.state.load(), Socket::State::kKernel);
}

}  // namespace
}  // namespace clan::preload
