#include "preload/wait/set.h"
#include "stream/ending.h"
#include "wait/ready_check.h"

namespace clan::preload {
namespace {

struct SetSleeps : EpollSet {
  SetSleeps() { poll_tcp_socket(pair.fd(1), pair.socket(1)); }
  /// The sockets of the set have just said something: a sleep does not arm them.
  void hear() const {
    const Guard guard(epfd);
    set().set_now(monotonic_ns());
    for (std::uint32_t k = 0; k < set().watched.count; ++k) watch(*set().watched.at[k]);
  }
  std::uint64_t rung() const { return pair.rings(0); }
  Set& set() const { return *find(epfd); }
};

TEST_F(SetSleeps, APeerRingsForAThreadThatSleepsAndNoLongerThan) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  hear();
  const Guard guard(epfd);
  ASSERT_TRUE(prepare(set()));
  EXPECT_EQ(set().sleepers, 1);
  EXPECT_EQ(set().watched.count, 1u);
  const std::uint64_t before = rung();
  ASSERT_EQ(pair.send(0, "a"), 1);
  EXPECT_EQ(rung(), before + 1);
  EXPECT_EQ(pair.receive(1), "a");
  awake(set());
  ASSERT_TRUE(prepare(set()));
  awake(set());
  EXPECT_EQ(set().sleepers, 0);
  ASSERT_EQ(pair.send(0, "b"), 1);
  EXPECT_EQ(rung(), before + 1) << "the wish has been taken back";
}

TEST_F(SetSleeps, AreNotBegunWhereThereIsSomething) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  ASSERT_EQ(pair.send(0, "abc"), 3);
  const Guard guard(epfd);
  EXPECT_FALSE(prepare(set()));
  EXPECT_EQ(set().sleepers, 1) << "to be followed by awake()";
  awake(set());
  EXPECT_EQ(set().sleepers, 0);
}

TEST_F(SetSleeps, OfSocketsThatHaveBeenSilentForLongArmThem) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  hear();
  set().watched.at[0]->heard_ns -= 2 * kQuietNs;
  const Guard guard(epfd);
  EXPECT_TRUE(prepare(set()));
  EXPECT_EQ(set().watched.count, 0u);
  awake(set());
  const std::uint64_t before = rung();
  ASSERT_EQ(pair.send(0, "a"), 1);
  EXPECT_EQ(rung(), before + 1) << "its peer rings at the next bytes, sleep or not";
}

}  // namespace
}  // namespace clan::preload
