#include "stream/going_back.h"

#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

struct HeldUp : testing::Test {
  HeldUp() { pair.migrate_and_greet(); }
  Socket& s() const { return pair.socket(0); }
  TcpPair pair;
};

TEST_F(HeldUp, IsNoConnectionThatIsInItsPipe) { EXPECT_FALSE(is_held_up(s())); }

TEST_F(HeldUp, IsOneThatHasPutItsLastRecordAndIsNotBack) {
  EXPECT_EQ(s().pipe.leave().err, 0);
  EXPECT_TRUE(is_on_its_way(s()));
  EXPECT_TRUE(is_held_up(s()));
  add_state(s().mine(), socket_face::kGone);
  EXPECT_FALSE(is_held_up(s()));
}

TEST_F(HeldUp, IsOneThatHasYetToAnswerTheOtherEnd) {
  s().answer_wanted_ns = 1;
  EXPECT_TRUE(is_held_up(s()));
  s().answer_wanted_ns = 0;
}

TEST_F(HeldUp, IsCountedForEdges) {
  const std::uint32_t full = s().full.load(), counted = s().held_up.load();
  note_held_up(s());
  EXPECT_EQ(s().full.load(), full + 1);
  EXPECT_EQ(s().held_up.load(), counted + 1);
}

}  // namespace
}  // namespace clan::preload
