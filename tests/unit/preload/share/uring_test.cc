// While the process has a ring of io_uring, its connections are TCP's.
#include "share/uring.h"

#include "os/io_uring_count.h"
#include "preload/tcp_pair.h"
#include "state/face.h"

namespace clan::preload {
namespace {

TEST(UringRooms, ARingTakesBackWhatHasMoved) {
  TcpPair pair;
  pair.migrate();
  ASSERT_EQ(pair.send(0, "before"), 6);
  ring_made();
  EXPECT_TRUE(rings_alive());
  EXPECT_EQ(pair.receive(1), "before");
  EXPECT_NE(state_of(pair.socket(0).mine()) & socket_face::kLeaving, 0u);
  EXPECT_NE(state_of(pair.socket(1).mine()) & socket_face::kLeaving, 0u);
  ring_closed();
  EXPECT_FALSE(rings_alive());
}

TEST(UringRooms, ASocketThatWasOfferedIsTcpsForGood) {
  TcpPair pair;
  ring_made();
  EXPECT_EQ(pair.socket(0).state.load(), Socket::State::kKernel);
  ring_closed();
  EXPECT_EQ(pair.socket(0).state.load(), Socket::State::kKernel);
}

TEST(UringRooms, OneOfSeveralRingsThatIsClosedIsNotTheLast) {
  ring_made();
  ring_made();
  ring_closed();
  EXPECT_TRUE(rings_alive());
  ring_closed();
  EXPECT_FALSE(rings_alive());
}

TEST(UringRooms, ADescriptorThatIsNoRingClosesNone) {
  ring_made();
  forget_ring(0);
  EXPECT_TRUE(rings_alive());
  ring_closed();
}

// A program that registers the ring with itself may close its descriptor and go on.
TEST(UringRooms, ARingThatIsRegisteredWithItselfLivesOn) {
  constexpr unsigned kRegisterRingFds = 20;
  (void)ring_register(-1, kRegisterRingFds, nullptr, 0);
  EXPECT_TRUE(rings_alive());
  open_rings.store(0);
}

}  // namespace
}  // namespace clan::preload
