// The end of a process, and of its part in shared memory.
#include "share/process_end.h"

#include "preload/tcp_pair.h"
#include "state/face.h"

namespace clan::preload {
namespace {

std::uint64_t holders_left(const Socket& s) {
  return OpenFileState::holders(s.open_file().held.load());
}

TEST(ProcessEnd, CountsTheProcessOutOnce) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  s.inherited = true;
  s.open_file().held.fetch_add(2 * OpenFileState::kProcess);  // children
  ASSERT_EQ(holders_left(s), 3u);
  at_exit();
  EXPECT_EQ(holders_left(s), 2u);
  EXPECT_EQ(OpenFileState::users(s.open_file().held.load()), 2u);
  at_exit();
  EXPECT_EQ(holders_left(s), 2u);
}

TEST(ProcessEnd, LeavesAConnectionThatNobodyElseHasToItsClose) {
  TcpPair pair;
  pair.migrate();
  ASSERT_EQ(pair.send(0, "last words"), 10);
  at_exit();
  EXPECT_EQ(holders_left(pair.socket(0)), 0u);
  EXPECT_EQ(pair.receive(1), "last words");
  EXPECT_EQ(state_of(pair.socket(1).theirs()) & socket_face::kClosed, 0u);
  pair.close(0);
  EXPECT_NE(state_of(pair.socket(1).theirs()) & socket_face::kClosed, 0u);
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
