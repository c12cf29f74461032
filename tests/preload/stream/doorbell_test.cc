#include "stream/doorbell.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "preload/tcp_pair.h"
#include "state/bells.h"
#include "stream/poll_tcp.h"
#include "stream/ring.h"

namespace clan::preload {
namespace {

using socket_face::kBells;
using socket_face::kDoorbells;
using socket_face::kSwallowed;

constexpr std::uint64_t kSendsIt = socket_face::kSendsDoorbell | socket_face::kRingerSends;

struct Doorbell : testing::Test {
  Doorbell() { pair.migrate(); }
  TcpPair pair;
};

TEST_F(Doorbell, IsAByteOfTcpThatTheOtherEndCounts) {
  ring_doorbell(pair.fd(0), pair.socket(0));
  EXPECT_EQ(pair.socket(0).mine().words[kDoorbells].load(), 1u);
  EXPECT_TRUE(doorbells_waiting(pair.socket(1)));
  EXPECT_EQ(pair.receive(1), "");  // drains what TCP had before the switch: nothing
  EXPECT_TRUE(swallow_doorbells(pair.fd(1), pair.socket(1)));
  EXPECT_FALSE(doorbells_waiting(pair.socket(1)));
  EXPECT_EQ(pair.socket(1).mine().words[kSwallowed].load(), 1u);
}

TEST_F(Doorbell, IsReadNoFurtherThanAsked) {
  for (int k = 0; k < 3; ++k) ring_doorbell(pair.fd(0), pair.socket(0));
  EXPECT_TRUE(swallow_doorbells(pair.fd(1), pair.socket(1), 2));
  EXPECT_EQ(pair.socket(1).mine().words[kSwallowed].load(), 2u);
}

// An executed program has the socket, and locks of its own.
TEST_F(Doorbell, IsCountedThoughProcessesWithOtherLocksReadAtOnce) {
  constexpr std::uint64_t kRings = 20'000;
  const int copy = ::fcntl(pair.fd(1), F_DUPFD_CLOEXEC, 0);
  adopt(copy, false, 0);
  Route route;
  ASSERT_TRUE(route_of(copy, &route));
  {
    const Held other = hold(copy);
    auto pipe = Pipe::open(::dup(pair.socket(1).pipe.memfd()), 1);
    ASSERT_TRUE(pipe);
    other->pipe = std::move(*pipe);
    ASSERT_TRUE(enter_pipe(copy, *other, route, true));
  }
  ring_doorbell(pair.fd(0), pair.socket(0));
  EXPECT_EQ(pair.receive(1), "");  // drains what TCP had before the switch: nothing
  std::atomic<bool> over{false};
  std::thread readers[2];
  for (int k = 0; k < 2; ++k) {
    readers[k] = std::thread([&, fd = k == 0 ? copy : pair.fd(1)] {
      const Held s = hold(fd);
      while (!over.load()) (void)swallow_doorbells(fd, *s);
    });
  }
  auto& rung = pair.socket(0).mine().words[kDoorbells];
  auto& swallowed = pair.socket(1).mine().words[kSwallowed];
  while (rung.load() < kRings) {
    ring_doorbell(pair.fd(0), pair.socket(0));
    if (rung.load() % 64 == 0) ::sched_yield();
  }
  for (int k = 0; k < 2000 && swallowed.load() < rung.load(); ++k) ::usleep(1000);
  over.store(true);
  for (auto& reader : readers) reader.join();
  EXPECT_EQ(swallowed.load(), rung.load());
  forget(copy);
  ::close(copy);
}

TEST_F(Doorbell, IsNotRungAnyMoreWhenItsGateIsClosed) {
  PipePage::Face& face = pair.socket(0).mine();
  WaitBudget budget;
  {
    const Ringing ringing(face, budget);
    EXPECT_TRUE(ringing);
  }
  EXPECT_TRUE(silence(pair.socket(0)));
  const Ringing ringing(face, budget);
  EXPECT_FALSE(ringing);
  ring_doorbell(pair.fd(0), pair.socket(0));
  EXPECT_EQ(face.words[kDoorbells].load(), 0u);
}

TEST_F(Doorbell, OfAThreadThatWasKilledIsNotWaitedForLong) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  auto& bells = pair.socket(0).mine().words[kBells];
  const std::uint64_t ringer = bells::name_of(child) | 1;
  bells.store(ringer);
  pair.socket(0).inherited = true;
  EXPECT_TRUE(ringer_was_killed(pair.socket(0)));
  EXPECT_TRUE(must_ring(pair.socket(0), Pipe::Done{}));
  EXPECT_TRUE(silence_other_end(pair.socket(1)));
  EXPECT_EQ(bells.load(), socket_face::kBellsClosed);
  bells.store(ringer | kSendsIt);
  EXPECT_TRUE(silence(pair.socket(0)));
  EXPECT_EQ(bells.load(), socket_face::kBellsClosed);
  pair.socket(0).inherited = false;
}

// One that sends beside it is not named, and may be stopped before it does.
TEST_F(Doorbell, KeepsTheEndFromGoingBackAsLongAsAnyThreadSendsOne) {
  Socket& s = pair.socket(0);
  auto& bells = s.mine().words[kBells];
  bells.store(2 * socket_face::kSendsDoorbell | 2);
  EXPECT_FALSE(silence(s));
  bells.store(0);
  EXPECT_TRUE(silence(s));
}

TEST_F(Doorbell, OfAThreadInAnotherPidNamespaceIsWaitedFor) {
  Socket& s = pair.socket(0);
  auto& bells = s.mine().words[kBells];
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  const std::uint64_t elsewhere = std::uint64_t{1} << (23 + socket_face::kRinger);
  bells.store((bells::name_of(child) ^ elsewhere) | kSendsIt | 1);
  EXPECT_TRUE(another_rings(s));
  EXPECT_FALSE(silence(s));
  bells.store(0);
}

// It may be stopped, or a lie of the other end: it is not asked for at each sleep, and ever more
// seldom.
TEST_F(Doorbell, OfAThreadThatStaysIsLookedForEverMoreSeldom) {
  auto& bells = pair.socket(0).mine().words[kBells];
  Socket& waiter = pair.socket(1);
  EXPECT_LT(nap_beside_ringer(waiter), 0);
  bells.store(static_cast<std::uint64_t>(::getpid()) << socket_face::kRinger | 1);
  const std::int64_t first = nap_beside_ringer(waiter);
  EXPECT_GT(first, 0);
  EXPECT_LE(first, 10'000'000);
  EXPECT_LE(nap_beside_ringer(waiter), first) << "it was looked at just now";
  std::int64_t longest = first;
  for (int k = 0; k < 400 && longest <= 40'000'000; ++k) {
    ::usleep(10'000);
    longest = std::max(longest, nap_beside_ringer(waiter));
  }
  EXPECT_GT(longest, 40'000'000);
  bells.store(0);
  EXPECT_LT(nap_beside_ringer(waiter), 0);
}

// The other end can write the word.
TEST_F(Doorbell, IsRungBesideAThreadThatIsNamedForEverWithoutWaitingEachTime) {
  Socket& s = pair.socket(0);
  const auto time_of = [](const auto& step) {
    const std::uint64_t before = monotonic_ns();
    for (int k = 0; k < 2000; ++k) step();
    return monotonic_ns() - before;
  };
  const std::uint64_t yields = time_of([] { sched_yield(); });
  s.mine().words[kBells].store(static_cast<std::uint64_t>(::getppid()) << socket_face::kRinger | 1);
  // On a busy machine a yield takes a slice of time; two milliseconds of each ring are four
  // seconds.
  EXPECT_LT(time_of([&] { ring_doorbell(pair.fd(0), s); }), 3 * yields + 2'000'000'000);
  EXPECT_EQ(s.mine().words[kDoorbells].load(), 2000u);
}

TEST_F(Doorbell, IsOnlyOwedWhereThePipeSaysSo) {
  EXPECT_FALSE(must_ring(pair.socket(0), Pipe::Done{}));
  Pipe::Done asked;
  asked.must_ring = true;
  EXPECT_TRUE(must_ring(pair.socket(0), asked));
}

}  // namespace
}  // namespace clan::preload
