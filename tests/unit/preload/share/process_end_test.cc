// The end of a process, and of its part in shared memory.
#include "share/process_end.h"

#include "preload/tcp_pair.h"
#include "state/face.h"

namespace clan::preload {
namespace {

std::uint64_t holders_of(const Socket& s) { return s.mine().words[socket_face::kHolders].load(); }

TEST(ProcessEnd, CountsTheProcessOutOnce) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  s.inherited = true;
  add_holders(s.mine(), 2);  // children
  ASSERT_EQ(holders_of(s), 3u);
  at_exit();
  EXPECT_EQ(holders_of(s), 2u);
  EXPECT_EQ(OpenFileState::users(s.open_file().held.load()), 0u);
  at_exit();
  EXPECT_EQ(holders_of(s), 2u);
}

TEST(ProcessEnd, LeavesAConnectionThatNobodyElseHasToItsClose) {
  TcpPair pair;
  pair.migrate();
  ASSERT_EQ(pair.send(0, "last words"), 10);
  at_exit();
  EXPECT_EQ(holders_of(pair.socket(0)), 1u);
  EXPECT_EQ(pair.receive(1), "last words");
}

TEST(ProcessEnd, TellsThatTheKernelIsToResetTheConnection) {
  TcpPair pair;
  pair.migrate();
  const linger now{1, 0};
  ASSERT_EQ(::setsockopt(pair.fd(0), SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
  at_exit();
  EXPECT_NE(state_of(pair.socket(0).mine()) & socket_face::kReset, 0u);
  EXPECT_EQ(state_of(pair.socket(1).mine()) & socket_face::kReset, 0u);
}

TEST(ProcessEnd, TakesBackAnOfferThatNobodyHasTakenUp) {
  TcpPair pair;
  Socket& s = pair.socket(0);
  s.offer_name.keep(1);
  at_exit();
  EXPECT_EQ(s.offer_name.get(), 0u);
}

}  // namespace
}  // namespace clan::preload
