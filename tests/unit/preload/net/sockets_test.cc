// Switching and the end of a connection, where the carrier's threads are played by the test.
#include "net/sockets.h"

#include <gtest/gtest.h>

#include "clan/face/socket_face.h"
#include "net/bell.h"
#include "preload/tcp_pair.h"
#include "state/face.h"

namespace clan::preload {
namespace {

class NetSockets : public ::testing::Test {
 protected:
  NetSockets() { the_program = &interposer; }
};

TEST_F(NetSockets, TheCarriersThreadMakesAnEndSwitchAndParksItsByte) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  begin_bells(s);
  EXPECT_TRUE(kProgramCalls.may_switch(&s));
  EXPECT_NE(state_of(s.mine()) & socket_face::kSending, 0u);
  EXPECT_FALSE(s.remote_parked.load());
  kProgramCalls.park(&s);
  EXPECT_TRUE(s.remote_parked.load());
  char byte = 1;
  EXPECT_EQ(sys::recv(pair.fd(1), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 0);
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
