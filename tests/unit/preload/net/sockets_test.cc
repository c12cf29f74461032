// Switching and the end of a connection, where the carrier's threads are played by the test.
#include "net/sockets.h"

#include <gtest/gtest.h>

#include "clan/face/socket_face.h"
#include "preload/tcp_pair.h"
#include "state/face.h"
#include "stream/bell.h"

namespace clan::preload {
namespace {

class NetSockets : public ::testing::Test {
 protected:
  NetSockets() { the_program = &interposer; }
};

TEST_F(NetSockets, TheCarriersThreadMakesAnEndSwitchAndSaysWhenTheOtherHostKnows) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  EXPECT_TRUE(kProgramCalls.may_switch(&s));
  EXPECT_NE(state_of(s.mine()) & socket_face::kSending, 0u);
  EXPECT_FALSE(s.switch_known.load());
  kProgramCalls.switch_is_known(&s);
  EXPECT_TRUE(s.switch_known.load());
}

// The carrier in this process writes it.
TEST_F(NetSockets, RingsTheBellOfThisEnd) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  s.Bells::reset();
  ASSERT_TRUE(the_program->make_own_bell(s));
  add_state(s.theirs(), socket_face::kClosed);
  {
    const BellSleep bell(s);
    pollfd p;
    ASSERT_EQ(bell.watch(&p), 1u);
    EXPECT_EQ(::poll(&p, 1, 0), 0);
    kProgramCalls.ring(&s);
    EXPECT_EQ(::poll(&p, 1, 0), 1);
    EXPECT_TRUE(bell.rung(&p));
  }
}

TEST_F(NetSockets, AConnectionThatIsLostIsReset) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  kProgramCalls.lost(&s);
  EXPECT_TRUE(s.kernel_error);
  char byte;
  EXPECT_LT(sys::recv(pair.fd(1), &byte, 1, 0), 0);
  EXPECT_EQ(errno, ECONNRESET);
}

}  // namespace
}  // namespace clan::preload
