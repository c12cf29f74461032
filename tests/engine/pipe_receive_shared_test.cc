#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "support/pipe_pair.h"
#include "support/stepped.h"

namespace clan {
namespace {

std::vector<char> receive(Pipe& p, std::size_t n) {
  std::vector<char> v(n);
  const iovec io{v.data(), n};
  v.resize(p.receive_shared(&io, 1, false).bytes);
  return v;
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // see support/stepped.h

constexpr std::size_t kThere = 3000, kEach = 150;

// Two bytes each: no value comes twice.
std::vector<char> numbered(std::size_t n) {
  std::vector<char> v(n);
  for (std::size_t i = 0; i < n; ++i)
    v[i] = static_cast<char>(i % 2 == 0 ? i / 2 : i / 2 >> 8 | 0x40);
  return v;
}

// Where it lies in `all`, as a whole; all.size(): nowhere.
std::size_t place_in(const std::vector<char>& all, const char* part, std::size_t n) {
  return static_cast<std::size_t>(std::search(all.begin(), all.end(), part, part + n) -
                                  all.begin());
}

/// What a child has received, for its parent.
struct Received {
  Received() {
    void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    n = static_cast<std::size_t*>(memory);
    bytes = static_cast<char*>(memory) + 64;
  }
  ~Received() { ::munmap(n, 4096); }
  Received(const Received&) = delete;
  Received& operator=(const Received&) = delete;
  std::size_t* n;
  char* bytes;
};

int receive_in_child(Pipe& p, Received& to, bool peek = false) {
  Pipe::after_fork_in_child();
  const iovec io{to.bytes, kEach};
  *to.n = p.receive_shared(&io, 1, peek).bytes;
  return 0;
}

int steps_of_a_receive() {
  PipePair p;
  Received by;
  put(p.b, numbered(kThere));
  return Stepped(1'000'000, [&] { return receive_in_child(p.a, by); }).made();
}

TEST(PipeReceiveShared, OneThatIsStoppedAnywhereKeepsTheOthersFromNothing) {
  if (!can_step()) GTEST_SKIP() << "ptrace() is forbidden";
  const int all = steps_of_a_receive();
  ASSERT_GT(all, 50);
  const std::vector<char> sent = numbered(kThere);
  int before = 0;
  for (int steps = 0; steps < all && !HasFailure(); steps += apart(all, 2)) {
    SCOPED_TRACE(steps);
    PipePair p;
    Received by;
    for (std::size_t at = 0; at < kThere; at += 200)
      put(p.b, {sent.begin() + static_cast<long>(at), sent.begin() + static_cast<long>(at) + 200});
    Stepped other(steps, [&] { return receive_in_child(p.a, by); });
    std::vector<char> mine = receive(p.a, 1000);
    ASSERT_EQ(mine.size(), 1000u);
    EXPECT_EQ(other.go_on(), 0);
    EXPECT_EQ(*by.n, kEach);
    const std::vector<char> rest = receive(p.a, kThere);
    mine.insert(mine.end(), rest.begin(), rest.end());
    ASSERT_EQ(mine.size(), kThere - kEach);
    const std::size_t at = place_in(sent, by.bytes, kEach);
    ASSERT_LE(at, kThere - kEach) << "no bytes of the stream";
    before += at == 0 ? 1 : 0;
    mine.insert(mine.begin() + static_cast<long>(at), by.bytes, by.bytes + kEach);
    EXPECT_EQ(mine, sent);
    EXPECT_EQ(p.b.unread_by_peer(), 0u);
    put(p.b, sent);
    EXPECT_EQ(get(p.a, kThere), sent);  // by a call of an end that is not shared any more
  }
  EXPECT_GT(before, 0);
  EXPECT_LT(before, all);
}

TEST(PipeReceiveShared, OneThatIsKilledAnywhereHasReceivedAllOrNothing) {
  if (!can_step()) GTEST_SKIP() << "ptrace() is forbidden";
  const int all = steps_of_a_receive();
  const std::vector<char> sent = numbered(kThere);
  for (int steps = 1; steps < all && !HasFailure(); steps += apart(all, 2)) {
    SCOPED_TRACE(steps);
    PipePair p;
    Received by;
    put(p.b, sent);
    Stepped other(steps, [&] { return receive_in_child(p.a, by); });
    other.kill();
    const std::vector<char> mine = get(p.a, kThere);
    EXPECT_TRUE(mine == sent || mine == std::vector<char>(sent.begin() + kEach, sent.end()))
        << mine.size();
  }
}

TEST(PipeReceiveShared, OneThatWasStoppedInAPeekSeesWhatIsThereWhenItEnds) {
  if (!can_step()) GTEST_SKIP() << "ptrace() is forbidden";
  const int all = steps_of_a_receive();
  const std::vector<char> sent = numbered(kThere);
  for (int steps = 0; steps < all && !HasFailure(); steps += apart(all, 5)) {
    SCOPED_TRACE(steps);
    PipePair p;
    Received by;
    put(p.b, sent);
    Stepped other(steps, [&] { return receive_in_child(p.a, by, true); });
    EXPECT_EQ(receive(p.a, 1000).size(), 1000u);
    // The lines it looks at are written over.
    for (int i = 0; i < 60; ++i) {
      put(p.b, std::vector<char>(5000, 'x'));
      receive(p.a, 5000);
    }
    EXPECT_EQ(other.go_on(), 0);
    EXPECT_EQ(*by.n, kEach);
    const bool old = place_in(sent, by.bytes, kEach) < kThere;
    EXPECT_TRUE(old || std::all_of(by.bytes, by.bytes + kEach, [](char c) { return c == 'x'; }));
    EXPECT_NE(p.a.front(), PipeFront::kBroken);
  }
}

#endif

TEST(PipeReceiveShared, SeveralProcessesAtOnceReceiveEachByteOnce) {
  PipePair p;
  constexpr int kReaders = 3;
  constexpr std::size_t kAll = 2'000'000;
  auto* sums = static_cast<std::atomic<std::uint64_t>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  pid_t readers[kReaders];
  for (pid_t& reader : readers) {
    reader = ::fork();
    if (reader != 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    Pipe::after_fork_in_child();
    while (sums[0] < kAll) {
      for (const char c : receive(p.a, 700)) {
        sums[1] += static_cast<unsigned char>(c);
        ++sums[0];
      }
    }
    ::_exit(0);
  }
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < kAll;) {
    std::vector<char> some = bytes_from(std::min<std::size_t>(900, kAll - at), at);
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
  EXPECT_EQ(sums[0], kAll);
  EXPECT_EQ(sums[1], sum);
  ::munmap(sums, 4096);
}

}  // namespace
}  // namespace clan
