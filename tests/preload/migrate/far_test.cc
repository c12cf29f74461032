// Going back, where the carrier's threads are played by the test.
#include <gtest/gtest.h>

#include "../tcp_pair.h"
#include "clan/socket_face.h"
#include "far/bell.h"
#include "far/carrier.h"
#include "migrate/far_leave.h"
#include "migrate/far_meet.h"
#include "state/face.h"
#include "stream/tcp_prefix.h"

namespace clan::preload {
namespace {

TEST(Far, LeavingIsNothingForASocketOfThisHost) {
  TcpPair pair;
  pair.migrate();
  leave_all_far();
  leave_far(pair.fd(0), pair.socket(0), reasons::Why::kForked);
  EXPECT_TRUE(pair.socket(0).shared());
}

TEST(Far, ASocketThatOtherProcessesMayHaveStaysOnTcp) {
  TcpPair pair;
  Socket& s = pair.socket(0);
  s.inherited.store(true);
  Route route;
  ASSERT_TRUE(route_of(pair.fd(0), &route));
  meet_on_other_host(pair.fd(0), s, route);
  EXPECT_EQ(s.state.load(), Socket::State::kKernel);
  EXPECT_FALSE(is_far(s));
}

TEST(Far, TheCarriersThreadMakesAnEndSwitchAndParksItsByte) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  begin_far_bells(pair.fd(0), s);
  EXPECT_TRUE(carrier_calls.may_switch(&s));
  EXPECT_NE(state_of(s.mine()) & socket_face::kSending, 0u);
  EXPECT_FALSE(s.far_parked.load());
  carrier_calls.park(&s);
  EXPECT_TRUE(s.far_parked.load());
  char byte = 1;
  EXPECT_EQ(sys::recv(pair.fd(1), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 0);
}

TEST(Far, AConnectionThatIsLostIsReset) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  carrier_calls.lost(&s);
  EXPECT_TRUE(s.kernel_error);
  char byte;
  EXPECT_LT(sys::recv(pair.fd(1), &byte, 1, 0), 0);
  EXPECT_EQ(errno, ECONNRESET);
}

}  // namespace
}  // namespace clan::preload
