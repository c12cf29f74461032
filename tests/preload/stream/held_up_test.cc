#include "stream/held_up.h"

#include <poll.h>

#include "preload/tcp_pair.h"
#include "stream/readiness.h"

namespace clan::preload {
namespace {

struct HeldUp : testing::Test {
  HeldUp() {
    pair.migrate();
    EXPECT_EQ(pair.send(0, "x"), 1);
    EXPECT_EQ(pair.receive(1), "x");
  }
  short of(int end) const { return readiness(pair.fd(end), pair.socket(end), true); }
  PipePage::End& end(int number) const {
    return pair.socket(number).pipe.page().ends[pair.socket(number).pipe.end()];
  }
  const std::uint32_t other = static_cast<std::uint32_t>(::getppid());  ///< a process that lives
  TcpPair pair;
};

TEST_F(HeldUp, ASendIsNotReadyUntilTheLockIsFree) {
  const std::uint32_t before = pair.socket(0).full.load();
  end(0).sender.lock.store(other);
  EXPECT_NE(of(0) & POLLOUT, 0) << "nobody has found it taken yet";
  EXPECT_EQ(pair.send(0, "y"), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_NE(pair.socket(0).full.load(), before) << "no edge";
  EXPECT_TRUE(is_held_up(pair.socket(0)));
  EXPECT_EQ(of(0) & POLLOUT, 0);
  end(0).sender.lock.store(0);
  EXPECT_FALSE(is_held_up(pair.socket(0)));
  EXPECT_NE(of(0) & POLLOUT, 0);
  EXPECT_EQ(pair.send(0, "z"), 1);
  EXPECT_EQ(pair.receive(1), "z");
}

TEST_F(HeldUp, AReceiveIsNotReadyUntilTheLockIsFree) {
  const std::uint32_t before = pair.socket(1).held_up.load();
  ASSERT_EQ(pair.send(0, "y"), 1);
  end(1).receiver.lock.store(other);
  EXPECT_NE(of(1) & POLLIN, 0);
  EXPECT_EQ(pair.receive(1), "");
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_NE(pair.socket(1).held_up.load(), before) << "no edge";
  EXPECT_EQ(of(1) & POLLIN, 0);
  EXPECT_NE(of(1) & POLLOUT, 0) << "the other direction goes on";
  EXPECT_EQ(pair.send(1, "back"), 4);
  EXPECT_EQ(pair.receive(0), "back");
  end(1).receiver.lock.store(0);
  EXPECT_NE(of(1) & POLLIN, 0);
  EXPECT_EQ(pair.receive(1), "y");
}

TEST_F(HeldUp, ALockThatIsNoThreadsEndsTheConnectionAtOnce) {
  ASSERT_EQ(pair.send(0, "y"), 1);
  end(1).receiver.lock.store(0x7fffffu);
  EXPECT_EQ(pair.receive(1), "");
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_NE(of(1) & POLLERR, 0);
}

}  // namespace
}  // namespace clan::preload
