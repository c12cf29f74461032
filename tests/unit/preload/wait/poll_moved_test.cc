#include "wait/poll_moved.h"

#include <memory>

#include "os/timeout.h"
#include "preload/wait/set.h"
#include "preload/wait/spinning.h"
#include "stream/close.h"

namespace clan::preload {
namespace {

struct PollMoved : testing::Test {
  int wait(int timeout_ms) {
    return poll_moved(asked, 2, timeout_ms * std::int64_t{1'000'000},
                      [this](pollfd* copy, nfds_t count, std::int64_t ns) {
                        if (ns != 0) ++kernel_sleeps;
                        return sys::poll(copy, count, static_cast<int>(ns / 1'000'000));
                      });
  }

  Spinning spinning;
  pollfd asked[2] = {{spinning.pair.fd(1), POLLIN, 0}, {spinning.pipe[0], POLLIN, 0}};
  int kernel_sleeps = 0;
};

TEST_F(PollMoved, TellsOfBothAtOnce) {
  EXPECT_EQ(wait(0), 0);
  ASSERT_EQ(spinning.pair.send(0, "a"), 1);
  ASSERT_EQ(::write(spinning.pipe[1], "b", 1), 1);
  EXPECT_EQ(wait(0), 2);
  EXPECT_EQ(asked[0].revents, POLLIN);
  EXPECT_EQ(asked[1].revents, POLLIN);
}

TEST_F(PollMoved, AsksTheKernelOfAPlainDescriptorWhileItSpins) {
  const auto renew = [](const WaitOptions& options) {
    std::destroy_at(&waiter_of_poll());
    return std::construct_at(&waiter_of_poll(), options);
  };
  EXPECT_TRUE(spinning.tells(
      [&] { return renew(Spinning::kForLong); },
      [&] { return wait(60'000) == 1 && asked[0].revents == 0 && asked[1].revents == POLLIN; },
      kernel_sleeps));
  (void)renew(WaitOptions{});
}

// It is all that the kernel goes on to say of such a socket.
TEST_F(PollMoved, SleepsForRoomThoughItsEndReadsNoMore) {
  const TcpPair& pair = spinning.pair;
  const std::string block(1 << 20, 'x');
  while (pair.send(1, block) > 0) {
  }
  ASSERT_EQ(shared_shutdown(pair.fd(1), pair.socket(1), SHUT_RD), 0);
  pollfd one{pair.fd(1), POLLOUT, 0};
  int sleeps = 0, told = 0;
  const int n = poll_moved(&one, 1, kForEver, [&](pollfd* copy, nfds_t count, std::int64_t ns) {
    const int rc = sys::poll(copy, count, 0);
    told += rc != 0;
    EXPECT_GT(ns, 0) << "nobody wakes it";
    if (++sleeps == 3 || told > 0) {
      while (!pair.receive(0, 1 << 20).empty()) {
      }
    }
    return rc;
  });
  EXPECT_EQ(told, 0);
  EXPECT_EQ(sleeps, 3);
  EXPECT_EQ(n, 1);
  EXPECT_EQ(one.revents, POLLOUT);
}

TEST_F(PollMoved, ASocketIsRungForAsLongAsItsThreadSleeps) {
  Socket& s = spinning.pair.socket(1);
  const auto wishes = [&] { return s.pipe.page().ends[1].receiver.waiting.load(); };
  pollfd one{spinning.pair.fd(1), POLLIN, 0};
  int sleeps = 0;
  const int n = poll_moved(&one, 1, kForEver, [&](pollfd* copy, nfds_t count, std::int64_t) {
    ++sleeps;
    EXPECT_NE(wishes(), 0u);
    EXPECT_EQ(spinning.pair.send(0, "a"), 1);
    return sys::poll(copy, count, 1'000);
  });
  EXPECT_EQ(sleeps, 1);
  EXPECT_EQ(n, 1);
  EXPECT_EQ(one.revents, POLLIN);
  EXPECT_EQ(wishes(), 0u);
}

TEST_F(PollMoved, TellsOfASocketTwiceThatIsAskedForTwice) {
  ASSERT_EQ(spinning.pair.send(0, "a"), 1);
  pollfd same[3];
  for (pollfd& one : same) one = {spinning.pair.fd(1), POLLIN, 0};
  same[2].events = 0;
  EXPECT_EQ(poll_moved(
                same, 3, 0,
                [](pollfd* copy, nfds_t count, std::int64_t) { return sys::poll(copy, count, 0); }),
            2);
  EXPECT_EQ(same[0].revents, POLLIN);
  EXPECT_EQ(same[1].revents, POLLIN);
  EXPECT_EQ(same[2].revents, 0);
}

TEST_F(PollMoved, SleepsByTheBellsOfAllOfItsSockets) {
  TcpPair other;
  other.migrate_and_greet();
  pollfd two[2] = {{other.fd(1), POLLIN, 0}, {spinning.pair.fd(1), POLLIN, 0}};
  for (const bool of_other : {true, false}) {
    const TcpPair& writer = of_other ? other : spinning.pair;
    int sleeps = 0;
    const int n = poll_moved(two, 2, kForEver, [&](pollfd* copy, nfds_t count, std::int64_t ns) {
      if (ns == 0) return sys::poll(copy, count, 0);
      ++sleeps;
      EXPECT_EQ(count, 4u);
      EXPECT_EQ(writer.send(0, "a"), 1);
      return sys::poll(copy, count, 60'000);
    });
    EXPECT_EQ(sleeps, 1);
    EXPECT_EQ(n, 1);
    EXPECT_EQ(two[0].revents, of_other ? POLLIN : 0);
    EXPECT_EQ(two[1].revents, of_other ? 0 : POLLIN);
    EXPECT_EQ(writer.receive(1), "a");
  }
}

TEST_F(PollMoved, DoesWithoutBellsWhereTheyAreTooManyDescriptors) {
  pollfd one{spinning.pair.fd(1), POLLIN, 0};
  const int n = poll_moved(&one, 1, kForEver, [&](pollfd* copy, nfds_t count, std::int64_t ns) {
    if (count > 1) {
      EXPECT_EQ(spinning.pair.send(0, "a"), 1);
      errno = EINVAL;
      return -1;
    }
    EXPECT_TRUE(ns >= 0) << "nobody wakes it";
    return sys::poll(copy, count, 0);
  });
  EXPECT_EQ(n, 1);
  EXPECT_EQ(one.revents, POLLIN);
}

}  // namespace
}  // namespace clan::preload
