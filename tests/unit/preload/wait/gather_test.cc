#include "wait/gather.h"

#include <fcntl.h>

#include "preload/wait/set.h"
#include "tcp/ring.h"
#include "wait/ready_check.h"
#include "wait/registration.h"

namespace clan::preload {
namespace {

using Data = std::vector<std::uint64_t>;

/// End 1 of `pair` is reported as 41.
struct Gather : EpollSet {
  Gather() {
    other.migrate();
    EXPECT_EQ(other.receive(1), "");
    EXPECT_EQ(::pipe2(plain, O_CLOEXEC), 0);
  }
  ~Gather() override {
    for (const int fd : plain) ::close(fd);
  }
  void add(int fd, std::uint64_t data, std::uint32_t events = EPOLLIN) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = data;
    ASSERT_EQ(control(epfd, EPOLL_CTL_ADD, fd, &event), 0);
  }
  void write_plain() { ASSERT_EQ(::write(plain[1], "x", 1), 1); }
  Set& set() const { return *find(epfd); }
  Interest& interest() const { return *find(set(), &pair.socket(1), pair.fd(1)); }

  /// Returns what one gather() reports, in its order. `told`: what the kernel has answered already.
  Data gathered(int most = 8, std::vector<epoll_event> told = {}) {
    const int asked = told.empty() ? -1 : static_cast<int>(told.size());
    told.resize(16);
    const Guard guard(epfd);
    const int n = gather(set(), told.data(), most, asked, order_stamp() & PipeStamp::kTimeMask);
    Data data;
    for (int k = 0; k < n; ++k) data.push_back(data_of(told[static_cast<std::size_t>(k)]));
    return data;
  }

  TcpPair other;
  int plain[2] = {-1, -1};
};

TEST_F(Gather, FindsNothingInASilentSet) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  add(plain[0], 50);
  EXPECT_EQ(gathered(), Data{});
}

TEST_F(Gather, TellsOfSocketsInTheOrderTheyWereWrittenTo) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  add(other.fd(1), 60);
  ASSERT_EQ(other.send(0, "first"), 5);
  ASSERT_EQ(pair.send(0, "second"), 6);
  EXPECT_EQ(gathered(), (Data{60, 41}));
  EXPECT_EQ(other.receive(1), "first");
  EXPECT_EQ(gathered(), Data{41});
}

TEST_F(Gather, TellsOfEveryDescriptorWithinTwoRoundsWhereThereIsRoomForOne) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  add(plain[0], 50);
  write_plain();
  ASSERT_EQ(pair.send(0, "abc"), 3);
  Data data = gathered(1);
  const Data second = gathered(1);
  data.insert(data.end(), second.begin(), second.end());
  EXPECT_EQ(data, (Data{50, 41})) << "the kernel comes first, what has migrated next";
}

TEST_F(Gather, TellsFirstOfWhatHasWaitedLongestOfTwoByLevel) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  add(other.fd(1), 60);
  ASSERT_EQ(other.send(0, "a"), 1);
  ASSERT_EQ(pair.send(0, "b"), 1);
  EXPECT_EQ(gathered(1), Data{60});
  EXPECT_EQ(gathered(1), Data{41});
  EXPECT_EQ(gathered(1), Data{60});
}

TEST_F(Gather, ChecksASocketAgainWhoseBellWasRungForNothing) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  {
    const Guard guard(epfd);
    arm(interest());
    ASSERT_EQ(interest().watched_at, Interest::kNowhere);
  }
  ASSERT_TRUE(ring_bell(pair.socket(0)));
  EXPECT_EQ(gathered(), Data{});
  EXPECT_NE(interest().watched_at, Interest::kNowhere) << "it is looked at again from now on";
}

TEST_F(Gather, TellsOfAnArmedSocketWhoseRingTheKernelHasTold) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  {
    const Guard guard(epfd);
    arm(interest());
  }
  ASSERT_EQ(pair.send(0, "abc"), 3);
  epoll_event event{};
  ASSERT_EQ(ask_kernel(set(), &event, 1), 1);
  ASSERT_TRUE(has_our_tag(event));
  EXPECT_EQ(gathered(8, {event}), Data{41}) << "by the application's word";
}

TEST_F(Gather, KeepsTheKernelsWordOfASocketThatIsParked) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  Interest& parked = interest();
  ASSERT_EQ(ask(EPOLL_CTL_DEL, 0), 0);
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_EQ(gathered(8, {for_tcp(pair.fd(1))}), Data{});
  EXPECT_TRUE(parked.missed);
}

TEST_F(Gather, IgnoresTheKernelsWordOfADescriptorThatIsNotThere) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  EXPECT_EQ(gathered(8, {for_tcp(other.fd(1)), for_tcp(60'000)}), Data{});
}

TEST_F(Gather, PutsAPlainDescriptorBehindWhatWasWrittenBeforeTheKernelWasAsked) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  add(plain[0], 50);
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_EQ(gathered(), Data{41});
  write_plain();
  ASSERT_EQ(pair.receive(1), "abc");
  ASSERT_EQ(gathered(), Data{50});
  char byte;
  ASSERT_EQ(::read(plain[0], &byte, 1), 1);
  ASSERT_EQ(pair.send(0, "abc"), 3);
  ASSERT_EQ(gathered(), Data{41});
  write_plain();
  EXPECT_EQ(gathered().size(), 2u);
}

TEST_F(Gather, KnowsWhetherTheKernelHasDescriptorsOfItsOwnThere) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  EXPECT_FALSE(has_plain(set()));
  TcpPair unmoved;
  add(unmoved.fd(1), 80);
  EXPECT_TRUE(has_plain(set())) << "a socket on TCP is the kernel's";
  unmoved.close(1);
  EXPECT_FALSE(has_plain(set()));
  add(plain[0], 50);
  EXPECT_TRUE(has_plain(set()));
}

TEST_F(Gather, AnswersTheKernelsPlainEventsInTheirOrder) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  epoll_event first{}, second{};
  first.events = second.events = EPOLLIN;
  first.data.u64 = 51;
  second.data.u64 = 50;
  EXPECT_EQ(gathered(8, {first, second}), (Data{51, 50}));
  EXPECT_EQ(gathered(8, {first, first}), (Data{51, 51})) << "two with the same data are two";
}

}  // namespace
}  // namespace clan::preload
