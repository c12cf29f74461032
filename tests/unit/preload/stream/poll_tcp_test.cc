#include "stream/poll_tcp.h"

#include <poll.h>

#include "preload/tcp_pair.h"
#include "state/face.h"
#include "stream/bell.h"
#include "stream/blocking.h"
#include "stream/close.h"
#include "tcp/doorbell.h"

namespace clan::preload {
namespace {

using socket_face::kDoorbells;

/// Nothing is on its way, nor left in TCP.
struct LookAtTcp : testing::Test {
  LookAtTcp() {
    pair.migrate();
    EXPECT_EQ(pair.send(0, "x"), 1);
    EXPECT_EQ(pair.receive(1), "x");
    EXPECT_TRUE(poll_tcp_socket(fd, s));
  }
  void ring() { ring_doorbell(pair.fd(0), pair.socket(0)); }
  std::uint64_t rung() const { return s.theirs().words[kDoorbells].load(); }
  bool kernel_says_readable() const {
    pollfd p{fd, POLLIN, 0};
    return ::poll(&p, 1, 0) == 1;
  }
  TcpPair pair;
  const int fd = pair.fd(1);
  Socket& s = pair.socket(1);
};

TEST_F(LookAtTcp, DropsADoorbell) {
  ring();
  ASSERT_TRUE(kernel_says_readable());
  EXPECT_TRUE(poll_tcp_socket(fd, s));
  EXPECT_FALSE(kernel_says_readable());
  EXPECT_FALSE(doorbells_waiting(s));
}

TEST_F(LookAtTcp, LeavesADoorbellThatHasSomethingToTellAnotherThread) {
  const Sleeper another(s, true, false);
  ring();
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_FALSE(poll_tcp_socket(fd, s));
  EXPECT_TRUE(kernel_says_readable());
}

TEST_F(LookAtTcp, DropsOneThatTellsAnotherThreadNothingAndAsksForTheNextInItsName) {
  const Sleeper another(s, true, false);
  ring();
  EXPECT_TRUE(poll_tcp_socket(fd, s));
  EXPECT_FALSE(kernel_says_readable());
  const std::uint64_t before = rung();
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_EQ(rung(), before + 1);
}

TEST_F(LookAtTcp, LeavesADoorbellToAnotherThreadOnlyWhereThereAreBytesEnoughForIt) {
  const Sleeper another(s, true, false);
  s.low_water = 4;
  ring();
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_TRUE(poll_tcp_socket(fd, s));
  ring();
  ASSERT_EQ(pair.send(0, "d"), 1);
  EXPECT_FALSE(poll_tcp_socket(fd, s));
}

TEST_F(LookAtTcp, LeavesADoorbellToAThreadThatSleepsForRoomWhereThereIs) {
  const Sleeper another(s, false, true);
  ring();
  EXPECT_FALSE(poll_tcp_socket(fd, s)) << "there is room";
  const std::string block(1 << 20, 'x');
  while (pair.send(1, block) > 0) {
  }
  EXPECT_TRUE(poll_tcp_socket(fd, s)) << "there is none";
}

TEST_F(LookAtTcp, FindsTheEndOfThePeer) {
  pair.close(0);
  pollfd p{fd, POLLIN, 0};
  ASSERT_EQ(::poll(&p, 1, 5'000), 1);
  (void)poll_tcp_socket(fd, s);
  EXPECT_TRUE(s.kernel_end);
}

TEST_F(LookAtTcp, ReadsNothingOfASocketThatIsBackOnTcp) {
  s.back_in = true;
  ring();
  EXPECT_TRUE(poll_tcp_socket(fd, s));
  EXPECT_TRUE(kernel_says_readable()) << "the byte is the application's";
  s.back_in = false;
}

TEST_F(LookAtTcp, ForDoorbellsAloneDropsThem) {
  ring();
  EXPECT_TRUE(take_doorbells(fd, s));
  EXPECT_FALSE(kernel_says_readable());
  s.kernel_end.set();  // no doorbell alone any more
  ring();
  EXPECT_TRUE(take_doorbells(fd, s));
  EXPECT_FALSE(kernel_says_readable());
  s.kernel_end.reset();
}

TEST_F(LookAtTcp, KnowsThreadsThatSleepForBytesOrRoomAndProcessesThatShareTheSocket) {
  EXPECT_FALSE(others_sleep(s));
  {
    const Sleeper another(s, true, false);
    EXPECT_TRUE(others_sleep(s));
  }
  {
    const Sleeper another(s, false, true);
    EXPECT_TRUE(others_sleep(s));
  }
  EXPECT_FALSE(others_sleep(s));
  s.inherited = true;
  EXPECT_TRUE(others_sleep(s));
  s.inherited = false;
}

TEST_F(LookAtTcp, CountsBytesOfTcpAndOfThePipeTogetherUntilTheEnd) {
  EXPECT_TRUE(enough_bytes(s)) << "one is always enough";
  s.low_water = 5;
  EXPECT_FALSE(enough_bytes(s));
  EXPECT_TRUE(enough_bytes(s, 5));
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_FALSE(enough_bytes(s, 1));
  EXPECT_TRUE(enough_bytes(s, 2));
  ASSERT_EQ(shared_shutdown(pair.fd(0), pair.socket(0), SHUT_WR), 0);
  EXPECT_TRUE(enough_bytes(s)) << "no more will come";
}

}  // namespace
}  // namespace clan::preload
