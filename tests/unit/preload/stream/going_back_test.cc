#include "stream/going_back.h"

#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

struct GoingBack : testing::Test {
  GoingBack() { pair.migrate_and_greet(); }
  Socket& s() const { return pair.socket(0); }
  TcpPair pair;
};

TEST_F(GoingBack, IsNoConnectionThatIsInItsPipe) { EXPECT_FALSE(is_going_back(s())); }

TEST_F(GoingBack, IsOneThatHasPutItsLastRecordAndIsNotBack) {
  EXPECT_EQ(s().pipe.leave().err, 0);
  EXPECT_TRUE(is_on_its_way(s()));
  EXPECT_TRUE(is_going_back(s()));
  add_state(s().mine(), socket_face::kGone);
  EXPECT_FALSE(is_going_back(s()));
}

TEST_F(GoingBack, IsOneThatHasYetToAnswerTheOtherEnd) {
  s().answer_wanted_ns = 1;
  EXPECT_TRUE(is_going_back(s()));
  s().answer_wanted_ns = 0;
}

TEST_F(GoingBack, IsCountedForEdges) {
  const std::uint32_t full = s().full.load(), counted = s().going_back.load();
  note_going_back(s());
  EXPECT_EQ(s().full.load(), full + 1);
  EXPECT_EQ(s().going_back.load(), counted + 1);
}

}  // namespace
}  // namespace clan::preload
