#include "wait/registration.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <map>

#include "preload/wait/set.h"
#include "tcp/ring.h"
#include "wait/ready_check.h"

namespace clan::preload {
namespace {

constexpr unsigned kAlways = EPOLLERR | EPOLLHUP;  // which the kernel adds
constexpr unsigned kNotThere = ~0u;

struct Registration : EpollSet {
  /// What the kernel is asked to report of a descriptor.
  unsigned asked(int fd) const {
    unsigned found = kNotThere;
    EXPECT_TRUE(for_registered(epfd, [&](int one, unsigned events) {
      if (one == fd) found = events & ~kAlways;
    }));
    return found;
  }
  unsigned asked() const { return asked(pair.fd(1)); }
  Set& set() const { return *find(epfd); }
  Interest& interest() const { return *set().interests.at[0]; }
};

constexpr unsigned kForTcp = EPOLLIN | EPOLLRDHUP | EPOLLET;

TEST_F(Registration, IsReadInFullOfASetLongerThanWhatIsReadAtATime) {
  std::map<int, unsigned> put, found;
  for (unsigned k = 0; k < 50; ++k) {
    const int fd = ::eventfd(0, EFD_CLOEXEC);
    epoll_event event{};
    event.events = k % 2 == 0 ? EPOLLIN : EPOLLOUT | EPOLLET;
    event.data.u64 = ~std::uint64_t{0} >> k;  // lines of different lengths
    ASSERT_EQ(::epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event), 0);
    put[fd] = event.events;
  }
  std::size_t lines = 0;
  EXPECT_TRUE(for_registered(epfd, [&](int fd, unsigned events) {
    ++lines;
    found[fd] = events & ~kAlways;
  }));
  EXPECT_EQ(lines, put.size());
  EXPECT_EQ(found, put);
  for (const auto& [fd, events] : put) ::close(fd);
}

TEST_F(Registration, SaysWhetherASetIsEmptyAsFarAsTheKernelDoes) {
  EXPECT_TRUE(is_empty(epfd));
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  EXPECT_FALSE(is_empty(epfd));
  errno = 0;
  EXPECT_FALSE(is_empty(1'000'000)) << "of no descriptor it says nothing";
  EXPECT_EQ(errno, 0);
}

TEST_F(Registration, OfASocketThatHasMigratedIsForTcpsNewsByEdges) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLOUT), 0);
  EXPECT_EQ(asked(), kForTcp);
}

TEST_F(Registration, GoesBackToWhatTheApplicationAskedForWithTheSocket) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLOUT | EPOLLRDHUP), 0);
  const Guard guard(epfd);
  watch_kernel(interest());
  EXPECT_EQ(asked(), static_cast<unsigned>(EPOLLOUT | EPOLLRDHUP));
  EXPECT_EQ(set().moved.load(), 0u);
  EXPECT_EQ(interest().watched_at, Interest::kNowhere);
  watch_moved(interest());
  EXPECT_EQ(asked(), kForTcp);
  EXPECT_EQ(set().moved.load(), 1u);
}

TEST_F(Registration, OfAOneShotThatHasFiredAsksForNothing) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN | EPOLLONESHOT), 0);
  const Guard guard(epfd);
  interest().fired = true;
  watch_kernel(interest());
  EXPECT_EQ(asked(), static_cast<unsigned>(EPOLLONESHOT));
}

TEST_F(Registration, TellsThatAOneShotHasFiredBeforeItsSocketMigrated) {
  for (const bool fires : {true, false}) {
    TcpPair later;
    epoll_event event{};
    event.events = EPOLLIN | EPOLLONESHOT;
    ASSERT_EQ(control(epfd, EPOLL_CTL_ADD, later.fd(1), &event), 0);
    if (fires) {
      ASSERT_EQ(::send(later.fd(0), "x", 1, 0), 1);
      ASSERT_EQ(wait(1'000).size(), 1u);
      char byte;
      ASSERT_EQ(::recv(later.fd(1), &byte, 1, 0), 1);
    }
    later.migrate();
    EXPECT_EQ(interest().fired, fires);
  }
}

TEST_F(Registration, IsChangedEvenWhereTheKernelDoesNotModifyIt) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  epoll_event exclusive{};
  exclusive.events = EPOLLIN | EPOLLEXCLUSIVE;
  const int fd = ::eventfd(0, EFD_CLOEXEC);
  ASSERT_EQ(::epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &exclusive), 0);
  epoll_event event{};
  event.events = EPOLLOUT;
  const Guard guard(epfd);
  change_to(set(), fd, &event);
  EXPECT_EQ(asked(fd), static_cast<unsigned>(EPOLLOUT));
  ASSERT_EQ(::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, nullptr), 0);
  event.events = EPOLLIN;
  change_to(set(), fd, &event);
  EXPECT_EQ(asked(fd), static_cast<unsigned>(EPOLLIN)) << "another process had taken it out";
  ::close(fd);
}

TEST_F(Registration, OfABellIsThereOnceForAllDescriptorsOfASocket) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  const int copy = ::dup(pair.fd(1));
  ASSERT_TRUE(duplicate_entry(pair.fd(1), copy));
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(control(epfd, EPOLL_CTL_ADD, copy, &event), 0);
  const int bell = pair.socket(1).bell.get();
  {
    const Guard guard(epfd);
    for (std::uint32_t k = 0; k < 2; ++k) EXPECT_TRUE(watches_bell(*set().interests.at[k]));
    leave_bell(*find(set(), &pair.socket(1), pair.fd(1)));
    EXPECT_NE(asked(bell), kNotThere) << "the other one needs it";
    leave_bell(*find(set(), &pair.socket(1), copy));
    EXPECT_EQ(asked(bell), kNotThere);
  }
  forget(copy);
  ::close(copy);
}

TEST_F(Registration, OfABellThatIsThereNamesADescriptorThatIs) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  const int bell = pair.socket(1).bell.get();
  epoll_event stale{};
  stale.events = EPOLLIN | EPOLLET;
  stale.data.u64 = kTag | kOfBell | 12345;
  ASSERT_EQ(sys::epoll_ctl(epfd, EPOLL_CTL_ADD, bell, &stale), 0);
  ASSERT_TRUE(watches_bell(interest()));
  ASSERT_TRUE(ring_bell(pair.socket(0)));
  epoll_event told{};
  ASSERT_EQ(sys::epoll_wait(epfd, &told, 1, 0), 1);
  EXPECT_EQ(data_of(told), kTag | kOfBell | static_cast<std::uint64_t>(pair.fd(1)));
}

TEST_F(Registration, OfASetThatHasBeenClosedIsLeftAlone) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  ASSERT_TRUE(watches_bell(interest()));
  ASSERT_TRUE(ring_bell(pair.socket(0)));
  epoll_event event{};
  const Guard guard(epfd);
  EXPECT_EQ(ask_kernel(set(), &event, 1), 1);
  ASSERT_TRUE(ring_bell(pair.socket(0)));
  set().names = 0;
  errno = 0;
  EXPECT_EQ(change(set(), EPOLL_CTL_DEL, pair.fd(1), nullptr), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(ask_kernel(set(), &event, 1), 0);
  set().names = 1;
  EXPECT_EQ(asked(), kForTcp);
}

TEST_F(Registration, HasATagByWhichItsEventsAreLeftOut) {
  epoll_event events[4] = {};
  events[0].data.u64 = 7;
  events[1] = for_tcp(12);
  events[2].data.u64 = 9;
  events[3] = for_tcp(13);
  EXPECT_TRUE(has_our_tag(events[1]));
  ASSERT_EQ(without_ours(events, 4), 2);
  EXPECT_EQ(data_of(events[0]), 7u);
  EXPECT_EQ(data_of(events[1]), 9u);
  EXPECT_EQ(without_ours(events, -1), 0);
}

TEST_F(Registration, WakesAThreadThatSleepsForASocketThatHasSomethingToSay) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  const Guard guard(epfd);
  ASSERT_EQ(pair.send(0, "abc"), 3);
  tell_sleepers(interest(), true);
  EXPECT_EQ(asked(), kForTcp) << "no thread sleeps";
  set().sleepers = 1;
  tell_sleepers(interest(), true);
  EXPECT_EQ(asked(), kForTcp | EPOLLOUT) << "which is there at once";
  set().sleepers = 0;
}

TEST_F(Registration, AsksTheNewlyAskedPeerToRingInPlaceOfAThreadThatSleeps) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  const Guard guard(epfd);
  ASSERT_EQ(pair.send(0, "a"), 1);
  ASSERT_EQ(pair.receive(1), "a");
  const std::uint64_t before = pair.rings(0);
  set().sleepers = 1;
  tell_sleepers(interest(), true);
  EXPECT_EQ(asked(), kForTcp) << "there is nothing to wake it for";
  ASSERT_EQ(pair.send(0, "b"), 1);
  EXPECT_EQ(pair.rings(0), before + 1);
  set().sleepers = 0;
}

}  // namespace
}  // namespace clan::preload
