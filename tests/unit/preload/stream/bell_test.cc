#include "stream/bell.h"

#include <sys/resource.h>

#include <atomic>
#include <thread>

#include "preload/tcp_pair.h"
#include "preload/wait/set.h"
#include "stream/ending.h"
#include "tcp/ring.h"

namespace clan::preload {
namespace {

struct Bell : testing::Test {
  Bell() { pair.migrate_and_greet(); }
  /// Until a thread sleeps at the end.
  void until_asleep(int end) const {
    while (pair.socket(end).pipe.page().ends[end].receiver.waiting.load() == 0) ::usleep(100);
    ::usleep(20'000);
  }
  TcpPair pair;
};

TEST_F(Bell, WakesAReceive) {
  for (int k = 0; k < 20; ++k) {
    std::thread reader([&] { EXPECT_EQ(pair.receive(1, 4, 0), "ping"); });
    until_asleep(1);
    EXPECT_EQ(pair.send(0, "ping"), 4);
    reader.join();
  }
  EXPECT_GE(pair.rings(0), 20u);
}

TEST_F(Bell, WakesASendThatWaitsForRoom) {
  std::thread writer([&] { EXPECT_EQ(pair.send(0, std::string(64 << 20, 'm'), 0), 64 << 20); });
  std::size_t got = 0;
  while (got < 64 << 20) got += pair.receive(1, 1 << 20, 0).size();
  writer.join();
}

TEST_F(Bell, ThatHasBeenClosedPastTheLibraryEndsTheConnection) {
  ::close(pair.socket(0).others_bell.get());
  ring(pair.fd(0), pair.socket(0));
  EXPECT_EQ(reset_of(pair.socket(0)), ECONNRESET);
  pair.socket(0).others_bell.keep(-1);
}

TEST_F(Bell, WhoseNumberTheProgramClosesTakesTheConnectionBackFirst) {
  const int others = pair.socket(0).others_bell.get();
  EXPECT_EQ(pair.send(0, "pipe "), 5);
  disown(static_cast<unsigned>(others), static_cast<unsigned>(others));
  ::close(others);
  EXPECT_LT(pair.socket(0).others_bell.get(), 0);
  EXPECT_EQ(pair.send(0, "tcp"), 3);
  EXPECT_EQ(pair.receive(1, 8), "pipe tcp");
  EXPECT_EQ(pair.send(1, "back"), 4);
  EXPECT_EQ(pair.receive(0), "back");
}

TEST_F(Bell, ThatIsFullWakesAllTheSame) {
  for (int k = 0; k < 10'000; ++k) ring(pair.fd(0), pair.socket(0));
  std::thread reader([&] { EXPECT_EQ(pair.receive(1, 4, 0), "ping"); });
  until_asleep(1);
  EXPECT_EQ(pair.send(0, "ping"), 4);
  reader.join();
}

TEST_F(Bell, WakesEachThreadThatSleeps) {
  const BellSleep one(pair.socket(1)), two(pair.socket(1));
  pollfd p[2];
  ASSERT_EQ(one.watch(p), 1u);
  ASSERT_EQ(two.watch(p + 1), 1u);
  EXPECT_NE(p[0].fd, p[1].fd);
  EXPECT_EQ(::poll(p, 2, 0), 0);
  for (int k = 0; k < 3; ++k) {
    ring(pair.fd(0), pair.socket(0));
    EXPECT_EQ(::poll(p, 2, 60'000), 2);
    EXPECT_TRUE(one.rung(p));
    EXPECT_TRUE(two.rung(p + 1));
    EXPECT_EQ(::poll(p, 2, 0), 0);
  }
  const BellSleep three(pair.socket(1));
  ASSERT_EQ(three.watch(p), 1u);
  EXPECT_EQ(::poll(p, 1, 0), 0) << "rings of before are not its";
}

TEST_F(Bell, KeepsNoCloseFromThoseThatWait) {
  std::thread reader([&, fd = pair.fd(1)] {
    const SocketRef held = pair.held(1);
    char bytes[4];
    const iovec io{bytes, sizeof bytes};
    EXPECT_LE(shared_receive(fd, *held, &io, 1, 0), 0);
  });
  until_asleep(1);
  const int copy = ::dup(pair.fd(1));
  pair.close(1);
  EXPECT_EQ(::shutdown(copy, SHUT_RDWR), 0);
  ::close(copy);
  reader.join();
}

struct BellOfASet : EpollSet {
  /// A message wakes the set this often.
  void wake(int times) {
    for (int k = 0; k < times; ++k) {
      std::thread sender([&] {
        ::usleep(20'000);
        EXPECT_EQ(pair.send(0, "ping"), 4);
      });
      EXPECT_EQ(told(20'000), EPOLLIN);
      sender.join();
      EXPECT_EQ(pair.receive(1), "ping");
    }
  }
};

TEST_F(BellOfASet, WakesIt) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  wake(10);
  ASSERT_EQ(ask(EPOLL_CTL_DEL, 0), 0);
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  wake(2);
}

TEST_F(BellOfASet, WithTwoDescriptorsOfASocketWakesForBoth) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  const int copy = ::dup(pair.fd(1));
  ASSERT_TRUE(duplicate_entry(pair.fd(1), copy));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 99;
  ASSERT_EQ(control(epfd, EPOLL_CTL_ADD, copy, &event), 0);
  for (int k = 0; k < 3; ++k) {
    std::thread sender([&] {
      ::usleep(20'000);
      EXPECT_EQ(pair.send(0, "ping"), 4);
    });
    EXPECT_EQ(wait(20'000).size(), 2u);
    sender.join();
    EXPECT_EQ(pair.receive(1), "ping");
  }
  forget(copy);
  ::close(copy);
}

}  // namespace
}  // namespace clan::preload
