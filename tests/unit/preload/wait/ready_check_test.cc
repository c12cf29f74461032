#include "wait/ready_check.h"

#include "preload/wait/set.h"
#include "wait/registration.h"

namespace clan::preload {
namespace {

struct Look : EpollSet {
  Interest& interest() { return *find(epfd)->interests.at[0]; }
};

TEST_F(Look, FindsAnEdgeOfEachRecordUntilItIsTold) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN | EPOLLET), 0);
  const Guard guard(epfd);
  ASSERT_EQ(pair.send(0, "abc"), 3);
  const ReadyEvent found = ready_event_of(interest());
  EXPECT_EQ(found.event.events, EPOLLIN);
  EXPECT_EQ(ready_event_of(interest()).event.events, EPOLLIN);
  preload::mark_reported(found, 1);
  EXPECT_EQ(ready_event_of(interest()).event.events, 0u);
}

TEST_F(Look, FindsRoomAsAnEdgeOnlyAfterThereWasNone) {
  ASSERT_EQ(pair.send(1, "y"), 1);
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLOUT | EPOLLET), 0);
  const Guard guard(epfd);
  const ReadyEvent found = ready_event_of(interest());
  EXPECT_EQ(found.event.events, EPOLLOUT);
  preload::mark_reported(found, 1);
  EXPECT_FALSE(has_edge(pair.socket(1), interest().told, interest().told.in, EPOLLOUT));
  pair.socket(1).full.fetch_add(1);
  EXPECT_TRUE(has_edge(pair.socket(1), interest().told, interest().told.in, EPOLLOUT));
}

TEST_F(Look, SaysNothingOfAOneShotThatHasFired) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN | EPOLLONESHOT), 0);
  ASSERT_EQ(pair.send(0, "abc"), 3);
  const Guard guard(epfd);
  preload::mark_reported(ready_event_of(interest()), 1);
  EXPECT_TRUE(interest().fired);
  EXPECT_EQ(ready_event_of(interest()).event.events, 0u);
}

TEST_F(Look, ComesAgainSoonWhereThePipeHasBytesBehindTcps) {
  TcpPair other;
  ASSERT_EQ(::send(other.fd(0), "before ", 7, 0), 7);
  other.migrate();
  ASSERT_EQ(other.send(0, "after"), 5);
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(control(epfd, EPOLL_CTL_ADD, other.fd(1), &event), 0);
  ASSERT_TRUE(watches_bell(interest()));
  EXPECT_LT(longest_sleep(interest()), kNoCap) << "another thread may read TCP's";
  EXPECT_EQ(other.receive(1), "before after");
  EXPECT_EQ(longest_sleep(interest()), kNoCap);
}

TEST_F(Look, StopsLookingAtASilentSocketAndItsPeerRingsThen) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  {
    const Guard guard(epfd);
    arm(interest());
    EXPECT_EQ(interest().watched_at, Interest::kNowhere);
  }
  const std::uint64_t before = pair.rings(0);
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_EQ(pair.rings(0), before + 1);
  EXPECT_EQ(EpollSet::told(), EPOLLIN);
}

}  // namespace
}  // namespace clan::preload
