#include "stream/bell.h"

#include <sys/resource.h>

#include <atomic>
#include <thread>

#include "preload/tcp_pair.h"
#include "preload/wait/set.h"
#include "tcp/doorbell.h"

namespace clan::preload {
namespace {

std::uint64_t doorbells(const TcpPair& pair, int end) {
  return pair.socket(end).mine().words[socket_face::kDoorbells].load();
}
std::uint64_t rings(const TcpPair& pair, int end) {
  return pair.socket(end).mine().words[socket_face::kWakeups].load();
}

const Pipe::Done kWanted{.bytes = 1, .must_ring = true, .by_bell = true};

struct Bell : testing::Test {
  Bell() {
    pair.migrate_and_greet();
    pair.give_bells();
    for (const int end : {0, 1}) drain_doorbells(pair.fd(end), pair.socket(end));
    first[0] = doorbells(pair, 0), first[1] = doorbells(pair, 1);
  }
  std::uint64_t more_doorbells(int end) const { return doorbells(pair, end) - first[end]; }
  /// Until a thread sleeps at the end.
  void until_asleep(int end) const {
    while (pair.socket(end).data_sleepers.load() == 0) ::usleep(100);
    ::usleep(20'000);
  }
  TcpPair pair;
  std::uint64_t first[2] = {};
};

TEST_F(Bell, WakesAReceiveWithoutAByteByTcp) {
  for (int k = 0; k < 20; ++k) {
    std::thread reader([&] { EXPECT_EQ(pair.receive(1, 4, 0), "ping"); });
    until_asleep(1);
    EXPECT_EQ(pair.send(0, "ping"), 4);
    reader.join();
  }
  EXPECT_EQ(more_doorbells(0), 0u);
  EXPECT_GE(rings(pair, 0), 20u);
}

TEST_F(Bell, WakesASendThatWaitsForRoom) {
  std::thread writer([&] { EXPECT_EQ(pair.send(0, std::string(64 << 20, 'm'), 0), 64 << 20); });
  std::size_t got = 0;
  while (got < 64 << 20) got += pair.receive(1, 1 << 20, 0).size();
  writer.join();
  // The first wish for room, of when the end entered its pipe, is for a doorbell.
  EXPECT_LE(more_doorbells(0) + more_doorbells(1), 1u);
}

TEST_F(Bell, IsNotEnoughWhereAThreadWaitsThatDoesNotWatchIt) {
  EXPECT_TRUE(pair.socket(1).pipe.want_data(true));
  EXPECT_TRUE(pair.socket(1).pipe.want_data(false));
  EXPECT_EQ(pair.send(0, "x"), 1);
  EXPECT_EQ(more_doorbells(0), 1u);
}

TEST_F(Bell, OfAProcessThatIsGoneRaisesNoSignal) {
  pair.socket(1).Bells::reset();
  ring(pair.fd(0), pair.socket(0), kWanted);
  EXPECT_EQ(more_doorbells(0), 0u);
}

TEST_F(Bell, IsReplacedByADoorbellWhereItHasBeenClosed) {
  const int others = pair.socket(0).others_bell.get();
  disown(static_cast<unsigned>(others), static_cast<unsigned>(others));
  ::close(others);
  ring(pair.fd(0), pair.socket(0), kWanted);
  EXPECT_EQ(more_doorbells(0), 1u);
  EXPECT_LT(pair.socket(0).bell.get(), 0) << "sleepers ask for doorbells";
}

TEST_F(Bell, ThatIsFullWakesAllTheSame) {
  for (int k = 0; k < 10'000; ++k) ring(pair.fd(0), pair.socket(0), kWanted);
  EXPECT_EQ(more_doorbells(0), 0u);
  std::thread reader([&] { EXPECT_EQ(pair.receive(1, 4, 0), "ping"); });
  until_asleep(1);
  EXPECT_EQ(pair.send(0, "ping"), 4);
  reader.join();
  EXPECT_EQ(more_doorbells(0), 0u);
}

TEST_F(Bell, IsWatchedByOneThreadAtATime) {
  const BellSleep one(pair.socket(1), true);
  EXPECT_TRUE(one);
  const BellSleep two(pair.socket(1), true);
  EXPECT_FALSE(two);
}

TEST_F(Bell, IsTakenByTheThreadThatHasSlept) {
  const BellSleep bell(pair.socket(1), true);
  pollfd p;
  ASSERT_EQ(bell.watch(&p), 1u);
  EXPECT_EQ(::poll(&p, 1, 0), 0);
  ring(pair.fd(0), pair.socket(0), kWanted);
  EXPECT_EQ(::poll(&p, 1, 1000), 1);
  EXPECT_TRUE(bell.rung(&p));
  EXPECT_EQ(::poll(&p, 1, 0), 0);
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
  BellOfASet() {
    EXPECT_EQ(pair.send(1, "y"), 1);
    EXPECT_EQ(pair.receive(0), "y");
    pair.give_bells();
    before = doorbells(pair, 0);
  }
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
  std::uint64_t more_doorbells() const { return doorbells(pair, 0) - before; }
  std::uint64_t before = 0;
};

TEST_F(BellOfASet, WakesItWithoutAByteByTcp) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  wake(10);
  EXPECT_EQ(more_doorbells(), 0u);
  ASSERT_EQ(ask(EPOLL_CTL_DEL, 0), 0);
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  wake(2);
  EXPECT_EQ(more_doorbells(), 0u) << "nor when it has been taken out and put in again";
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
