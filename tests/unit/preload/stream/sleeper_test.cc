#include "preload/tcp_pair.h"
#include "stream/blocking.h"
#include "stream/readiness.h"

namespace clan::preload {
namespace {

struct Sleepers : testing::Test {
  Sleepers() {
    pair.migrate();
    EXPECT_EQ(pair.send(0, "x"), 1);
    EXPECT_EQ(pair.receive(1), "x");
  }
  std::uint64_t rung() const { return pair.socket(0).mine().words[socket_face::kDoorbells].load(); }
  TcpPair pair;
  Socket& s = pair.socket(1);
};

TEST_F(Sleepers, AreCountedByWhatTheySleepFor) {
  const Sleeper data(s, true, false);
  EXPECT_EQ(s.data_sleepers, 1);
  EXPECT_EQ(s.room_sleepers, 0);
  {
    const Sleeper both(s, true, true);
    EXPECT_EQ(s.data_sleepers, 2);
    EXPECT_EQ(s.room_sleepers, 1);
  }
  EXPECT_EQ(s.data_sleepers, 1);
  EXPECT_EQ(s.room_sleepers, 0);
  const Sleeper room(s, false, true);
  EXPECT_EQ(s.data_sleepers, 1);
  EXPECT_EQ(s.room_sleepers, 1);
}

TEST_F(Sleepers, ThatGoTakeTheWishForADoorbellBack) {
  {
    const Sleeper one(s, true, false);
    EXPECT_TRUE(prepare_sleep(s, POLLIN));
  }
  const std::uint64_t before = rung();
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_EQ(rung(), before);
}

TEST_F(Sleepers, ThatWantRoomLeaveTheWishForBytesAlone) {
  {
    const Sleeper one(s, false, true);
    EXPECT_TRUE(prepare_sleep(s, POLLIN));
  }
  const std::uint64_t before = rung();
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_EQ(rung(), before + 1);
}

}  // namespace
}  // namespace clan::preload
