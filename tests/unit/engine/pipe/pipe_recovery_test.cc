// A process that shares an end is killed, or stopped, at any instruction of a call.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <thread>
#include <vector>

#include "support/pipe_pair.h"
#include "support/stepped.h"

namespace clan {
namespace {

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // see support/stepped.h

constexpr std::size_t kMine = 100, kTheirs = 300;
constexpr int kAll = 1'000'000;  ///< instructions that no call makes

// Not in the call whose instructions are counted.
const std::vector<char> kOfChild(kTheirs, 'c');

int send_in_child(Pipe& p) {
  Pipe::after_fork_in_child();
  const iovec io{const_cast<char*>(kOfChild.data()), kTheirs};
  const Pipe::Done done = p.send(&io, 1);
  return done.bytes == kTheirs ? 0 : std::max(done.err, 1);
}

// What has come, of which 'c' is the child's and the rest a sequence of the test's own.
struct Reader {
  std::size_t mine = 0, theirs = 0;
  bool in_order = true;
  void read(Pipe& p) {
    for (std::vector<char> v; !(v = get(p, 2 * kRing)).empty();) {
      for (const char c : v) {
        if (c == 'c') {
          ++theirs;
        } else {
          in_order &= c == static_cast<char>(mine++ % 50);
        }
      }
    }
  }
};

struct Writer {
  std::size_t at = 0;
  Pipe::Done send(Pipe& p, std::size_t n) {
    std::vector<char> v(n);
    for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<char>((at + i) % 50);
    const Pipe::Done done = put(p, v);
    at += done.bytes;
    return done;
  }
};

// So many turns of the ring that all its lines are written again.
void expect_turns(PipePair& p, Writer& mine, Reader& reader) {
  for (std::size_t sent = 0; sent < std::size_t{kRing} * 3;) {
    const Pipe::Done done = mine.send(p.a, 1000);
    ASSERT_EQ(done.err, 0);
    ASSERT_GT(done.bytes, 0u);
    sent += done.bytes;
    reader.read(p.b);
  }
  EXPECT_EQ(reader.mine, mine.at);
  EXPECT_TRUE(reader.in_order);
}

// Lines of the ring before the child's record: behind some its record goes in front of all, behind
// others it jumps over what has not been read.
struct Before {
  std::size_t read, unread;
};
constexpr Before kBefore[] = {{0, 0}, {44, 0}, {40, 8}, {0, 44}, {1000, 0}};

void prepare(PipePair& p, Writer& mine, Reader& reader, const Before& before) {
  for (std::size_t i = 0; i < before.read; ++i) {
    mine.send(p.a, 1);
    reader.read(p.b);
  }
  for (std::size_t i = 0; i < before.unread; ++i) mine.send(p.a, 1);
}

TEST(PipeRecovery, OneThatIsKilledAnywhereInASendHasSentAllOrNothing) {
  if (!can_step()) GTEST_SKIP() << "ptrace() is forbidden";
  int sent = 0, dropped = 0;
  for (const Before& before : kBefore) {
    const auto place = [&](int steps, PipePair& p, Writer& mine, Reader& reader) {
      prepare(p, mine, reader, before);
      return Stepped(steps, [&] { return send_in_child(p.a); }).made();
    };
    PipePair first;
    Writer writer;
    Reader seen;
    const int all = place(kAll, first, writer, seen);
    ASSERT_GT(all, 50);
    for (int steps = 1; steps < all && !HasFailure(); steps += apart(all, 3)) {
      SCOPED_TRACE(testing::Message() << before.read << '+' << before.unread << " @" << steps);
      PipePair p;
      Writer mine;
      Reader reader;
      place(steps, p, mine, reader);
      expect_turns(p, mine, reader);
      EXPECT_TRUE(reader.theirs == kTheirs || reader.theirs == 0) << reader.theirs;
      ++(reader.theirs == kTheirs ? sent : dropped);
      EXPECT_LE(p.a.unread_by_peer(), kTheirs);
      EXPECT_EQ(p.a.end_sending().bytes, 1u);
      EXPECT_EQ(p.b.front(), PipeFront::kEnd);
    }
  }
  EXPECT_GT(sent, 0);
  EXPECT_GT(dropped, 0);
}

TEST(PipeRecovery, TheEndOfOneThatIsKilledAnywhereIsTheLastRecordOnce) {
  if (!can_step()) GTEST_SKIP() << "ptrace() is forbidden";
  for (const auto last : {&Pipe::end_sending, &Pipe::leave}) {
    const auto end = [&](Pipe& p) {
      Pipe::after_fork_in_child();
      return (p.*last)().bytes == 1 ? 0 : 1;
    };
    PipePair first;
    const int all = Stepped(kAll, [&] { return end(first.a); }).made();
    for (int steps = 1; steps < all && !HasFailure(); steps += apart(all, 3)) {
      SCOPED_TRACE(steps);
      PipePair p;
      Writer mine;
      Reader reader;
      Stepped(steps, [&] { return end(p.a); }).kill();
      const Pipe::Done sent = mine.send(p.a, kMine);
      EXPECT_TRUE(sent.bytes == kMine || sent.err == EPIPE) << sent.err;
      EXPECT_EQ((p.a.*last)().bytes == 1, sent.bytes == kMine);
      reader.read(p.b);
      EXPECT_EQ(reader.mine, mine.at);
      EXPECT_EQ(p.b.front(), last == &Pipe::leave ? PipeFront::kLeave : PipeFront::kEnd);
      EXPECT_EQ(mine.send(p.a, kMine).err, EPIPE);
    }
  }
}

// The one that finds the record of a dead process is killed, too.
TEST(PipeRecovery, OneThatIsKilledWhileItTakesALockOverLeavesTheLastRecordTheLast) {
  if (!can_step()) GTEST_SKIP() << "ptrace() is forbidden";
  const auto end = [](Pipe& p) {
    Pipe::after_fork_in_child();
    return p.end_sending().bytes == 1 ? 0 : 1;
  };
  PipePair first;
  const int all = Stepped(kAll, [&] { return end(first.a); }).made();
  // The last record is there, and its owner has not said so.
  std::vector<char> page(4096 + 64);
  bool found = false;
  std::uint32_t owner = 0;
  for (int steps = all; steps > all / 2 && !found; --steps) {
    PipePair p;
    Stepped(steps, [&] { return end(p.a); }).kill();
    auto* bytes = reinterpret_cast<char*>(&p.a.page());
    found = p.a.page().ends[0].sender.ended.load() == 0 && p.b.front() == PipeFront::kEnd;
    page.assign(bytes, bytes + page.size());
    owner = p.locks[0].sending.load();
  }
  ASSERT_TRUE(found);
  const auto second = [&](PipePair& p, int steps) {
    std::copy(page.begin(), page.end(), reinterpret_cast<char*>(&p.a.page()));
    p.locks[0].sending.store(owner);
    return Stepped(steps, [&] { return send_in_child(p.a); }).made();
  };
  PipePair one;
  const int its = second(one, kAll);
  // Most of them where it has the lock: at the end.
  for (int back = 1; back < its && !HasFailure(); back += 1 + back / 3) {
    SCOPED_TRACE(its - back);
    PipePair p;
    second(p, its - back);
    EXPECT_EQ(put(p.a, {'x'}).err, EPIPE);
    EXPECT_EQ(p.a.end_sending().err, EPIPE);
    EXPECT_EQ(p.b.front(), PipeFront::kEnd);
  }
}

// It had them, and is dead: all bytes behind come once.
TEST(PipeRecovery, OneThatIsKilledAnywhereInAReceiveHasTakenTheFirstBytesOrNone) {
  if (!can_step()) GTEST_SKIP() << "ptrace() is forbidden";
  constexpr std::size_t kThere = 3000, kEach = 700, kRecord = 200, kBegun = 50;
  const std::vector<char> all_bytes = bytes_from(kThere, 0);
  const auto fill = [&](PipePair& p) {
    for (std::size_t at = 0; at < kThere; at += kRecord)
      put(p.b, {all_bytes.begin() + static_cast<long>(at),
                all_bytes.begin() + static_cast<long>(at + kRecord)});
    get(p.a, kBegun);  // a part of the first record
  };
  const auto receive = [&](Pipe& p) {
    Pipe::after_fork_in_child();
    static char bytes[kEach];
    const iovec io{bytes, kEach};
    return p.receive(&io, 1, false).bytes == kEach ? 0 : 1;
  };
  PipePair first;
  fill(first);
  const int all = Stepped(kAll, [&] { return receive(first.a); }).made();
  int none = 0;
  for (int steps = 1; steps < all && !HasFailure(); steps += apart(all, 2)) {
    SCOPED_TRACE(steps);
    PipePair p;
    fill(p);
    Stepped(steps, [&] { return receive(p.a); }).kill();
    const std::vector<char> mine = get(p.a, kThere);
    ASSERT_LE(mine.size(), kThere - kBegun);
    const std::size_t taken = kThere - mine.size();
    EXPECT_LE(taken, kBegun + kEach);
    none += taken == kBegun ? 1 : 0;
    EXPECT_TRUE(std::equal(mine.begin(), mine.end(), all_bytes.begin() + static_cast<long>(taken)));
    EXPECT_EQ(p.b.unread_by_peer(), 0u);
    put(p.b, all_bytes);
    EXPECT_EQ(get(p.a, kThere), all_bytes);
  }
  EXPECT_GT(none, 0);
  EXPECT_LT(none, all);
}

TEST(PipeRecovery, OneThatIsStoppedAnywhereIsWaitedForAndLosesNothing) {
  if (!can_step()) GTEST_SKIP() << "ptrace() is forbidden";
  PipePair first;
  const int all = Stepped(kAll, [&] { return send_in_child(first.a); }).made();
  for (int steps = 1; steps < all && !HasFailure(); steps += apart(all, 3)) {
    SCOPED_TRACE(steps);
    PipePair p;
    Writer mine;
    Reader reader;
    Stepped other(steps, [&] { return send_in_child(p.a); });
    std::thread sender([&] { EXPECT_EQ(mine.send(p.a, kMine).bytes, kMine); });
    EXPECT_EQ(other.go_on(), 0);
    sender.join();
    expect_turns(p, mine, reader);
    EXPECT_EQ(reader.theirs, kTheirs);
    EXPECT_EQ(p.a.unread_by_peer(), 0u);
  }
}

#endif

TEST(PipeRecovery, SeveralProcessesAtOnceReceiveEachByteOnceThoughSomeAreStoppedForAWhile) {
  PipePair p;
  constexpr int kReaders = 3;
  constexpr std::size_t kBytes = 1'000'000;
  auto* sums = static_cast<std::atomic<std::uint64_t>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  pid_t readers[kReaders];
  for (pid_t& reader : readers) {
    reader = ::fork();
    if (reader != 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    Pipe::after_fork_in_child();
    while (sums[0] < kBytes) {
      for (const char c : get(p.a, 700)) {
        sums[1] += static_cast<unsigned char>(c);
        ++sums[0];
      }
    }
    ::_exit(0);
  }
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < kBytes;) {
    std::vector<char> some = bytes_from(std::min<std::size_t>(900, kBytes - at), at);
    some.resize(put(p.b, some).bytes);
    for (const char c : some) sum += static_cast<unsigned char>(c);
    at += some.size();
    // Some are stopped at any time.
    if (at % 50'000 < 900) ::kill(readers[at % kReaders], at % 7 < 4 ? SIGSTOP : SIGCONT);
    if (some.empty()) {
      for (const pid_t reader : readers) ::kill(reader, SIGCONT);
    }
  }
  for (const pid_t reader : readers) ::kill(reader, SIGCONT);
  for (const pid_t reader : readers) ::waitpid(reader, nullptr, 0);
  EXPECT_EQ(sums[0], kBytes);
  EXPECT_EQ(sums[1], sum);
  ::munmap(sums, 4096);
}

}  // namespace
}  // namespace clan
