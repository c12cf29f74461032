#include "migrate/bells.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>

#include "preload/tcp_pair.h"
#include "tcp/ring.h"

namespace clan::preload {
namespace {

TEST(PassedBells, GiveEachEndItsOwnAndTheOthers) {
  TcpPair pair;
  pair.migrate();
  for (const int end : {0, 1}) {
    const int bell = pair.socket(end).bell.get();
    const char byte = 'b';
    ASSERT_EQ(::write(pair.socket(1 - end).others_bell.get(), &byte, 1), 1);
    char got = 0;
    ASSERT_EQ(::read(bell, &got, 1), 1);
    EXPECT_EQ(got, byte);
    EXPECT_EQ(::read(bell, &got, 1), -1) << "and does not wait";
    EXPECT_EQ(errno, EAGAIN);
    EXPECT_LE(::fcntl(bell, F_GETPIPE_SZ), 4096);
    for (const int fd : {bell, pair.socket(end).others_bell.get()})
      EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
  }
}

TEST(PassedBells, AreNotMadeForWhatIsNoPeer) {
  TcpPair pair;
  pair.migrate();
  pair.socket(1).Bells::reset();
  PassedBells bells;
  EXPECT_FALSE(bells.make(pair.socket(1), -1));
  EXPECT_EQ(bells.count(), 0);
  EXPECT_LT(pair.socket(1).bell.get(), 0);
}

TEST(PassedBells, ThatAreNoBellsAreClosed) {
  TcpPair pair;
  pair.migrate();
  pair.socket(0).Bells::reset();
  int through[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, through), 0);
  {
    PassedBells bells;
    for (int& fd : bells.fds) fd = ::open("/dev/null", O_RDWR);
    EXPECT_FALSE(bells.adopt(pair.socket(0), through[0]));
  }
  for (const int fd : through) ::close(fd);
  EXPECT_LT(pair.socket(0).bell.get(), 0);
  EXPECT_LT(pair.socket(0).others_bell.get(), 0);
}

TEST(PassedBells, LeaveNothingOpenWhereThereIsNoRoom) {
  TcpPair pair;
  pair.migrate();
  int through[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, through), 0);
  for (const int end : {0, 1}) pair.socket(end).Bells::reset();
  const int next = ::dup(0);
  ::close(next);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{static_cast<rlim_t>(next) + 1, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  {
    PassedBells bells;
    EXPECT_FALSE(bells.make(pair.socket(1), through[0]));
    EXPECT_EQ(bells.count(), 0);
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_LT(pair.socket(1).bell.get(), 0);
  const int after = ::dup(0);
  EXPECT_EQ(after, next);
  for (const int fd : {after, through[0], through[1]}) ::close(fd);
}

// As with a process of another user.
TEST(PassedBells, MayBeTimersWhichEachRingSets) {
  TcpPair pair;
  pair.migrate();
  for (const int end : {0, 1}) pair.socket(end).Bells::reset();
  int through[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, through), 0);
  {
    PassedBells bells;
    for (int& fd : bells.fds) fd = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    pair.socket(1).bell.keep(::dup(bells.fds[1]));
    pair.socket(1).others_bell.keep(::dup(bells.fds[0]));
    EXPECT_TRUE(bells.adopt(pair.socket(0), through[0]));
  }
  for (const int fd : through) ::close(fd);
  for (const int end : {0, 1}) {
    const int set = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, pair.socket(end).bell.get(), &event), 0);
    for (int k = 0; k < 5; ++k) {
      EXPECT_TRUE(ring_bell(pair.socket(1 - end)));
      EXPECT_EQ(::epoll_wait(set, &event, 1, 60'000), 1) << "though nobody has read it";
    }
    EXPECT_EQ(::epoll_wait(set, &event, 1, 0), 0);
    ::close(set);
  }
  EXPECT_EQ(pair.send(0, "x"), 1);
  EXPECT_EQ(pair.receive(1), "x");
}

}  // namespace
}  // namespace clan::preload
