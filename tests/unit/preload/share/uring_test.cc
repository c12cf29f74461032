// A process with a ring of io_uring stays on TCP.
#include "share/uring.h"

#include "os/config.h"
#include "preload/sharer.h"
#include "preload/tcp_pair.h"
#include "state/face.h"

namespace clan::preload {
namespace {

bool makes_a_ring() {
  TcpPair pair, unmoved;
  pair.migrate();
  EXPECT_EQ(pair.send(0, "before"), 6);
  ring_made();
  EXPECT_EQ(pair.receive(1), "before");
  for (const int end : {0, 1})
    EXPECT_NE(state_of(pair.socket(end).mine()) & socket_face::kLeaving, 0u);
  EXPECT_EQ(unmoved.socket(0).state.load(), Socket::State::kKernel);
  EXPECT_TRUE(config().disabled);
  ring_made();
  return !testing::Test::HasFailure();
}

TEST(UringRooms, ARingTakesBackWhatHasMovedAndNothingMovesAnyMore) {
  Sharer process(makes_a_ring);
  process.ends_well();
}

}  // namespace
}  // namespace clan::preload
