#include "wait/waiting.h"

#include <thread>

#include "preload/wait/set.h"
#include "preload/wait/spinning.h"

namespace clan::preload {
namespace {

struct Waiting : EpollSet {};

TEST_F(Waiting, TellsOfBytesByLevelAsLongAsTheyLieThere) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  EXPECT_EQ(told(), 0u);
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_EQ(told(), EPOLLIN);
  EXPECT_EQ(told(), EPOLLIN);
  EXPECT_EQ(pair.receive(1), "abc");
  EXPECT_EQ(told(), 0u);
}

TEST_F(Waiting, TellsOfAnEdgeOnce) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN | EPOLLET), 0);
  (void)wait();
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_EQ(told(), EPOLLIN);
  EXPECT_EQ(told(), 0u);
  ASSERT_EQ(pair.send(0, "d"), 1);
  EXPECT_EQ(told(), EPOLLIN);
}

TEST_F(Waiting, SaysNothingMoreAfterAOneShotUntilItIsAskedAnew) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN | EPOLLONESHOT), 0);
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_EQ(told(), EPOLLIN);
  EXPECT_EQ(told(), 0u);
  ASSERT_EQ(ask(EPOLL_CTL_MOD, EPOLLIN | EPOLLONESHOT), 0);
  EXPECT_EQ(told(), EPOLLIN);
}

TEST_F(Waiting, WakesForBytesAndEndsAtItsTimeLimit) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  EXPECT_EQ(told(10), 0u);
  std::thread sender([&] {
    ::usleep(30'000);
    EXPECT_EQ(pair.send(0, "late"), 4);
  });
  EXPECT_EQ(told(5'000), EPOLLIN);
  sender.join();
}

TEST_F(Waiting, AsksTheKernelOfAPlainDescriptorWhileItSpins) {
  Spinning spinning;
  for (const int fd : {spinning.pair.fd(1), spinning.pipe[0]}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = static_cast<std::uint64_t>(fd);
    ASSERT_EQ(control(epfd, EPOLL_CTL_ADD, fd, &event), 0);
  }
  auto& waiter = find(epfd)->waiter;
  EXPECT_TRUE(spinning.tells([&] { return &waiter.emplace(Spinning::kForLong); },
                             [&] {
                               const auto events = wait(60'000);
                               return events.size() == 1 &&
                                      events[0].data.u64 ==
                                          static_cast<std::uint64_t>(spinning.pipe[0]);
                             },
                             kernel_sleeps));
}

TEST_F(Waiting, TellsInTheOrderInWhichTheyWereWritten) {
  TcpPair other;
  other.migrate();
  ASSERT_EQ(other.send(0, "x"), 1);
  ASSERT_EQ(other.receive(1), "x");
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 99;
  ASSERT_EQ(control(epfd, EPOLL_CTL_ADD, other.fd(1), &event), 0);
  ASSERT_EQ(other.send(0, "first"), 5);
  ASSERT_EQ(pair.send(0, "second"), 6);
  const auto events = wait();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(data_of(events[0]), 99u);
  EXPECT_EQ(data_of(events[1]), 41u);
}

}  // namespace
}  // namespace clan::preload
