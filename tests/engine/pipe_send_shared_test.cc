#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <memory>
#include <random>
#include <vector>

#include "support/pipe_pair.h"
#include "support/stepped.h"

namespace clan {
namespace {

constexpr std::size_t kMine = 100, kTheirs = 300;

// What one process sends: bytes of a run of its own. The first says whose.
struct Writer {
  unsigned char base;
  std::size_t at = 0;
  Pipe::Done send(Pipe& p, std::size_t n) {
    std::vector<char> v(n);
    for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<char>(base + (at + i) % 50);
    const iovec io{v.data(), n};
    const Pipe::Done done = p.send_shared(&io, 1);
    at += done.bytes;
    return done;
  }
};

// What has been received of each of them.
struct Reader {
  std::size_t of[5] = {};
  bool in_order = true;
  char buffer[2 * kRing];
  void read(Pipe& p) {
    const iovec io{buffer, sizeof buffer};
    while (const std::size_t n = p.receive(&io, 1, false).bytes) {
      for (std::size_t i = 0; i < n; ++i) {
        const auto value = static_cast<unsigned char>(buffer[i]);
        const std::size_t whose = std::min<std::size_t>(value / 50, 4);
        in_order &= value % 50 == of[whose] % 50;
        ++of[whose];
      }
    }
  }
};

// Not in the call whose instructions are counted.
std::vector<char> theirs(unsigned char base) {
  std::vector<char> v(kTheirs);
  for (std::size_t i = 0; i < kTheirs; ++i) v[i] = static_cast<char>(base + i % 50);
  return v;
}
const std::vector<char> kOfChild[] = {{}, theirs(50), theirs(100), theirs(150)};

int send_in_child(Pipe& p, int whose) {
  Pipe::after_fork_in_child();
  const iovec io{const_cast<char*>(kOfChild[whose].data()), kTheirs};
  const Pipe::Done done = p.send_shared(&io, 1);
  return done.bytes == kTheirs ? 0 : std::max(done.err, 1);
}

// So many turns of a ring that all its lines are written again.
void expect_turns(PipePair& p, Writer& mine, Reader& reader, int turns = 3) {
  for (std::size_t sent = 0; sent < std::size_t{kRing} * static_cast<std::size_t>(turns);) {
    const Pipe::Done done = mine.send(p.a, 1000);
    ASSERT_EQ(done.err, 0);
    ASSERT_GT(done.bytes, 0u);
    sent += done.bytes;
    reader.read(p.b);
  }
  EXPECT_EQ(reader.of[0], mine.at);
  EXPECT_TRUE(reader.in_order);
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // see support/stepped.h

constexpr int kEachStep = 5;

int steps_of_a_send() {
  PipePair p;
  return Stepped(1'000'000, [&] { return send_in_child(p.a, 1); }).made();
}

TEST(PipeSendShared, OneThatIsStoppedAnywhereKeepsTheOthersFromNothing) {
  if (!can_step()) GTEST_SKIP() << "ptrace() is forbidden";
  const int all = steps_of_a_send();
  ASSERT_GT(all, 100);
  for (int steps = 0; steps < all && !HasFailure(); steps += apart(all, kEachStep)) {
    SCOPED_TRACE(steps);
    PipePair p;
    Writer mine{0};
    Reader reader;
    Stepped other(steps, [&] { return send_in_child(p.a, 1); });
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(mine.send(p.a, kMine).bytes, kMine);
      if (i % 4 == 0) reader.read(p.b);
    }
    reader.read(p.b);
    EXPECT_EQ(reader.of[0], mine.at);
    EXPECT_EQ(other.go_on(), 0);
    reader.read(p.b);
    EXPECT_EQ(reader.of[1], kTheirs);
    expect_turns(p, mine, reader);
    EXPECT_EQ(p.a.unread_by_peer(), 0u);
  }
}

TEST(PipeSendShared, OneThatIsKilledAnywhereHasSentAllOrNothing) {
  if (!can_step()) GTEST_SKIP() << "ptrace() is forbidden";
  const int all = steps_of_a_send();
  int sent = 0, dropped = 0;
  for (int steps = 1; steps < all && !HasFailure(); steps += apart(all, kEachStep)) {
    SCOPED_TRACE(steps);
    PipePair p;
    Writer mine{0};
    Reader reader;
    Stepped other(steps, [&] { return send_in_child(p.a, 1); });
    if (steps % 2 == 0) {
      EXPECT_EQ(mine.send(p.a, kMine).bytes, kMine);
    }
    other.kill();
    expect_turns(p, mine, reader);
    ++(reader.of[1] == kTheirs ? sent : dropped);
    EXPECT_TRUE(reader.of[1] == kTheirs || reader.of[1] == 0) << reader.of[1];
    EXPECT_EQ(p.a.unread_by_peer(), 0u);
    EXPECT_EQ(p.a.end_sending().bytes, 1u);
  }
  EXPECT_GT(sent, 0);
  EXPECT_GT(dropped, 0);
}

TEST(PipeSendShared, SeveralThatAreStoppedAndGoOnInAnyOrderSendEachByteOnce) {
  if (!can_step()) GTEST_SKIP() << "ptrace() is forbidden";
  const int all = steps_of_a_send();
  std::mt19937 random(19);
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int rounds = apart(all, 1) == 1 ? 100 : 15;
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    PipePair p;
    Writer mine{0};
    Reader reader;
    // Most of them while they have the lock.
    auto steps = [&] { return round % 3 == 0 ? below(all) : all / 3 + below(all / 2); };
    Stepped one(steps(), [&] { return send_in_child(p.a, 1); });
    const int between = below(3);
    for (int i = 0; i < between; ++i) EXPECT_EQ(mine.send(p.a, kMine).bytes, kMine);
    Stepped two(steps(), [&] { return send_in_child(p.a, 2); });
    Stepped three(steps(), [&] { return send_in_child(p.a, 3); });
    SCOPED_TRACE(::testing::Message() << one.made() << ' ' << two.made() << ' ' << three.made());
    EXPECT_EQ(mine.send(p.a, kMine).bytes, kMine);
    Stepped* order[] = {&one, &two, &three};
    std::shuffle(std::begin(order), std::end(order), random);
    EXPECT_EQ(order[0]->go_on(), 0);
    if (round % 2 == 0) reader.read(p.b);
    EXPECT_EQ(mine.send(p.a, kMine).bytes, kMine);
    EXPECT_EQ(order[1]->go_on(), 0);
    EXPECT_EQ(order[2]->go_on(), 0);
    reader.read(p.b);
    for (const int whose : {1, 2, 3}) EXPECT_EQ(reader.of[whose], kTheirs);
    expect_turns(p, mine, reader);
  }
}

struct Last {
  Pipe::Done (Pipe::*put)();
  PipeFront front;
};
constexpr Last kEnds{&Pipe::end_sending_shared, PipeFront::kEnd};
constexpr Last kLeaves{&Pipe::leave_shared, PipeFront::kLeave};

/// `theirs`, of a process that is stopped or killed at each place, and `mine` meanwhile.
void expect_one_last_record(const Last& theirs, const Last& mine_is) {
  auto end = [&](Pipe& p) {
    Pipe::after_fork_in_child();
    const Pipe::Done done = (p.*theirs.put)();
    return done.bytes == 1 ? 0 : done.err;
  };
  const int all = [&] {
    PipePair p;
    return Stepped(1'000'000, [&] { return end(p.a); }).made();
  }();
  ASSERT_GT(all, 100);
  int by_it = 0, before_it = 0;
  for (int steps = 0, place = 0; steps < all && !testing::Test::HasFailure();
       steps += apart(all, 3), ++place) {
    SCOPED_TRACE(steps);
    PipePair p;
    Writer mine{0};
    Reader reader;
    Stepped other(steps, [&] { return end(p.a); });
    const Pipe::Done sent = mine.send(p.a, kMine);
    EXPECT_TRUE(sent.bytes == kMine || sent.err == EPIPE) << sent.err;
    bool is_mine = false;
    if (place % 3 != 2) {
      const Pipe::Done ended = (p.a.*mine_is.put)();
      EXPECT_TRUE(ended.bytes == 1 || ended.err == EPIPE) << ended.err;
      is_mine = ended.bytes == 1;
      ++(is_mine ? before_it : by_it);
    }
    if (place % 3 == 1) {
      other.kill();
    } else {
      const int said = other.go_on();
      EXPECT_TRUE(said == 0 || said == EPIPE) << said;
    }
    reader.read(p.b);
    EXPECT_EQ(reader.of[0], mine.at);
    EXPECT_EQ(p.b.front(), is_mine ? mine_is.front : theirs.front);
    EXPECT_EQ(p.a.page().ends[0].sender.ended.load(), p.b.front() == PipeFront::kEnd ? 1u : 2u);
    EXPECT_EQ(mine.send(p.a, kMine).err, EPIPE);
    EXPECT_EQ(put(p.a, std::vector<char>(kMine)).err, EPIPE);
    EXPECT_EQ(p.a.end_sending().err, EPIPE);
    EXPECT_EQ(p.a.leave().err, EPIPE);
  }
  EXPECT_GT(by_it, 0);
  EXPECT_GT(before_it, 0);
}

TEST(PipeSendShared, AnEndThatIsStoppedOrKilledAnywhereIsTheLastRecordOnce) {
  if (!can_step()) GTEST_SKIP() << "ptrace() is forbidden";
  expect_one_last_record(kEnds, kEnds);
}

TEST(PipeSendShared, OneThatLeavesOrEndsAndIsStoppedOrKilledAnywhereDoesSoOnce) {
  if (!can_step()) GTEST_SKIP() << "ptrace() is forbidden";
  expect_one_last_record(kLeaves, kLeaves);
  expect_one_last_record(kEnds, kLeaves);
}

#endif

// Stopped in the middle of its copy: see guard().
bool t_stops = false;
bool guard(void (*copy)(void*), void* argument) {
  if (t_stops) ::raise(SIGSTOP);
  copy(argument);
  return true;
}

/// A process that is stopped in the middle of the copy of a send.
class StoppedInACopy {
 public:
  explicit StoppedInACopy(Pipe& p) {
    Pipe::guard_copies(guard);
    process_ = ::fork();
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      t_stops = true;
      ::_exit(send_in_child(p, 1));
    }
    int status = 0;
    EXPECT_EQ(::waitpid(process_, &status, WUNTRACED), process_);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  ~StoppedInACopy() { Pipe::guard_copies(nullptr); }
  int go_on() {
    int status = 0;
    for (;;) {  // it is stopped at each copy
      ::kill(process_, SIGCONT);
      if (::waitpid(process_, &status, WUNTRACED) != process_ || !WIFSTOPPED(status)) break;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void kill() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }

 private:
  pid_t process_ = -1;
};

TEST(PipeSendShared, LinesOfOneThatIsStoppedInACopyArePassedInEachTurnOfTheRing) {
  PipePair p;
  Writer mine{0};
  Reader reader;
  expect_turns(p, mine, reader);
  StoppedInACopy other(p.a);
  expect_turns(p, mine, reader, 10);
  EXPECT_EQ(p.a.end_sending().err, EBUSY);
  EXPECT_EQ(p.a.send_shared(nullptr, 0).err, 0);
  EXPECT_EQ(other.go_on(), 0);
  EXPECT_FALSE(p.a.send_is_held_up());
  reader.read(p.b);
  EXPECT_EQ(reader.of[1], kTheirs);
  expect_turns(p, mine, reader);
  EXPECT_EQ(p.a.end_sending().bytes, 1u);
  reader.read(p.b);
  EXPECT_EQ(p.b.front(), PipeFront::kEnd);
}

// With a reader that comes now and then, so that the ring is full at times.
TEST(PipeSendShared, RecordsOfAnySizePassAllThatAreStoppedInACopy) {
  std::mt19937 random(7);
  for (int round = 0; round < 20 && !HasFailure(); ++round) {
    PipePair p;
    Writer mine{0};
    Reader reader;
    std::vector<std::unique_ptr<StoppedInACopy>> others;
    for (int i = 0; i < 400; ++i) {
      if (i % 40 == 20 && others.size() < 4) {
        reader.read(p.b);  // there is room for its bytes
        others.push_back(std::make_unique<StoppedInACopy>(p.a));
      }
      const bool read_all = i > 0 && random() % 3 == 0;
      if (read_all) reader.read(p.b);
      const Pipe::Done done = mine.send(p.a, 1 + random() % (round % 2 == 0 ? 20'000 : 500));
      if (done.bytes != 0) continue;
      ASSERT_TRUE(done.err == 0 || done.err == EBUSY) << done.err;
      ASSERT_FALSE(read_all) << i;
      reader.read(p.b);
      ASSERT_GT(mine.send(p.a, 100).bytes, 0u) << i;
    }
    reader.read(p.b);
    EXPECT_EQ(reader.of[0], mine.at);
    for (auto& other : others) EXPECT_EQ(other->go_on(), 0);
    reader.read(p.b);
    EXPECT_EQ(reader.of[1] + reader.of[0], mine.at + others.size() * kTheirs);
    expect_turns(p, mine, reader);
  }
}

TEST(PipeSendShared, AllThatMayBeStoppedInACopyLeaveAClaimForTheEnd) {
  PipePair p;
  Writer mine{0};
  std::vector<std::unique_ptr<StoppedInACopy>> others;
  for (std::size_t i = 0; i + 1 < PipePage::kClaims; ++i)
    others.push_back(std::make_unique<StoppedInACopy>(p.a));
  EXPECT_EQ(mine.send(p.a, kMine).err, EBUSY);
  EXPECT_TRUE(p.a.send_is_held_up());
  EXPECT_EQ(p.a.end_sending_shared().bytes, 1u);
  EXPECT_EQ(p.b.front(), PipeFront::kEnd);
  for (auto& other : others) EXPECT_EQ(other->go_on(), EPIPE);
  EXPECT_EQ(mine.send(p.a, kMine).err, EPIPE);
}

TEST(PipeSendShared, LinesOfOneThatWasKilledInACopyAreUsedAgain) {
  PipePair p;
  Writer mine{0};
  Reader reader;
  StoppedInACopy other(p.a);
  expect_turns(p, mine, reader);
  other.kill();
  expect_turns(p, mine, reader);
  EXPECT_EQ(reader.of[1], 0u);
  for (const auto& claim : p.a.page().ends[0].claims) EXPECT_EQ(claim.owner, 0u);
}

TEST(PipeSendShared, TheEndComesPastOneThatIsStoppedInACopy) {
  PipePair p;
  Writer mine{0};
  Reader reader;
  StoppedInACopy other(p.a);
  EXPECT_EQ(mine.send(p.a, kMine).bytes, kMine);
  EXPECT_EQ(p.a.end_sending_shared().bytes, 1u);
  EXPECT_EQ(p.a.end_sending_shared().err, EPIPE);
  EXPECT_EQ(mine.send(p.a, kMine).err, EPIPE);
  reader.read(p.b);
  EXPECT_EQ(p.b.front(), PipeFront::kEnd);
  EXPECT_EQ(other.go_on(), EPIPE);
  reader.read(p.b);
  EXPECT_EQ(p.b.front(), PipeFront::kEnd);
  EXPECT_EQ(reader.of[0], kMine);
  EXPECT_EQ(reader.of[1], 0u);
}

TEST(PipeSendShared, LeavesPastAllThatMayBeStoppedInACopy) {
  PipePair p;
  std::vector<std::unique_ptr<StoppedInACopy>> others;
  for (std::size_t i = 0; i + 1 < PipePage::kClaims; ++i)
    others.push_back(std::make_unique<StoppedInACopy>(p.a));
  EXPECT_EQ(p.a.leave().err, EBUSY);
  EXPECT_EQ(p.a.leave_shared().bytes, 1u);
  EXPECT_EQ(p.b.front(), PipeFront::kLeave);
  for (auto& other : others) EXPECT_EQ(other->go_on(), EPIPE);
  EXPECT_EQ(p.b.front(), PipeFront::kLeave);
}

TEST(PipeSendShared, MemoryIsNotReleasedUnderOneThatIsStopped) {
  PipePair p(kLargeRing);
  Writer mine{0};
  Reader reader;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(mine.send(p.a, 10'000).bytes, 10'000u);
  reader.read(p.b);
  StoppedInACopy other(p.a);
  EXPECT_EQ(mine.send(p.a, kMine).bytes, kMine);
  reader.read(p.b);
  EXPECT_FALSE(p.a.release());
  EXPECT_EQ(other.go_on(), 0);
  reader.read(p.b);
  EXPECT_TRUE(p.a.release());
  EXPECT_EQ(reader.of[1], kTheirs);
  expect_turns(p, mine, reader);
}

TEST(PipeSendShared, ACallOfAnEndThatIsNotSharedAnyMoreGoesPastOneThatIsStopped) {
  PipePair p;
  StoppedInACopy other(p.a);
  const std::vector<char> some(500, 'x');
  for (int i = 0; i < 500; ++i) {
    ASSERT_EQ(put(p.a, some).bytes, some.size());
    ASSERT_EQ(get(p.b, 10'000), some);
  }
  EXPECT_EQ(other.go_on(), 0);
  EXPECT_EQ(get(p.b, 10'000).size(), kTheirs);
  for (int i = 0; i < 500; ++i) {
    ASSERT_EQ(put(p.a, some).bytes, some.size());
    ASSERT_EQ(get(p.b, 10'000), some);
  }
}

}  // namespace
}  // namespace clan
