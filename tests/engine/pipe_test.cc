#include "clan/pipe.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

namespace clan {
namespace {

constexpr std::uint32_t kRing = 64 * 1024;

struct Pair {
  explicit Pair(std::uint32_t ring = kRing) {
    auto made = Pipe::create("test-pipe", ring, 0);
    EXPECT_TRUE(made.ok());
    a = std::move(*made);
    auto opened = Pipe::open(::fcntl(a.memfd(), F_DUPFD_CLOEXEC, 3), 1);
    EXPECT_TRUE(opened.ok());
    b = std::move(*opened);
  }
  Pipe a, b;
};

std::vector<char> pattern(std::size_t n, std::uint64_t from) {
  std::vector<char> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<char>((from + i) * 131 >> 3);
  return v;
}

Pipe::Done put(Pipe& p, const std::vector<char>& v, std::size_t from = 0) {
  const iovec io{const_cast<char*>(v.data()) + from, v.size() - from};
  return p.send(&io, 1);
}

std::vector<char> get(Pipe& p, std::size_t n, bool peek = false) {
  std::vector<char> v(n);
  const iovec io{v.data(), n};
  v.resize(p.receive(&io, 1, peek).bytes);
  return v;
}

int error_of_receiving(Pipe& p) {
  char byte;
  const iovec io{&byte, 1};
  return p.receive(&io, 1, false).err;
}

TEST(Pipe, CarriesBytesBothWays) {
  Pair p;
  EXPECT_EQ(p.b.front(), PipeFront::kNothing);
  EXPECT_EQ(put(p.a, {'h', 'i'}).bytes, 2u);
  EXPECT_EQ(p.b.front(), PipeFront::kBytes);
  EXPECT_EQ(p.b.readable_bytes(), 2u);
  EXPECT_EQ(p.a.unread_by_peer(), 2u);
  EXPECT_EQ(get(p.b, 10, true), (std::vector<char>{'h', 'i'}));  // a peek leaves it
  EXPECT_EQ(get(p.b, 1), (std::vector<char>{'h'}));
  EXPECT_EQ(get(p.b, 10), (std::vector<char>{'i'}));
  EXPECT_EQ(p.a.unread_by_peer(), 0u);
  EXPECT_EQ(put(p.b, {'y', 'o'}).bytes, 2u);
  EXPECT_EQ(get(p.a, 10), (std::vector<char>{'y', 'o'}));
}

TEST(Pipe, IsAByteStreamWhateverTheSizesOfCalls) {
  for (std::uint32_t ring : {4096u, 65536u, 524288u}) {
    Pair p(ring);
    std::mt19937_64 random(ring);
    std::uint64_t sent = 0, got = 0;
    for (int step = 0; step < 20000; ++step) {
      const std::size_t n = 1 + (random() % 4 == 0 ? random() % 70000 : random() % 200);
      if (random() % 2 == 0) {
        auto bytes = pattern(n, sent);
        // In up to three buffers, empty ones among them.
        iovec io[3];
        const std::size_t first = random() % (n + 1), second = random() % (n - first + 1);
        io[0] = {bytes.data(), first};
        io[1] = {bytes.data() + first, second};
        io[2] = {bytes.data() + first + second, n - first - second};
        sent += p.a.send(io, 3).bytes;
      } else {
        const auto bytes = get(p.b, n);
        ASSERT_EQ(bytes, pattern(bytes.size(), got)) << "ring " << ring << " step " << step;
        got += bytes.size();
      }
    }
    while (got < sent) {
      const auto bytes = get(p.b, 10000);
      ASSERT_FALSE(bytes.empty());
      ASSERT_EQ(bytes, pattern(bytes.size(), got));
      got += bytes.size();
    }
    EXPECT_EQ(p.b.front(), PipeFront::kNothing);
    EXPECT_TRUE(p.a.writable());
  }
}

TEST(Pipe, StopsWhenFullAndGoesOnWhenRead) {
  Pair p;
  const auto block = pattern(1000, 0);
  std::size_t sent = 0;
  for (std::size_t n; (n = put(p.a, block).bytes) > 0;) sent += n;
  EXPECT_GT(sent, kRing / 2u);
  EXPECT_TRUE(p.a.want_room());
  bool rung = false;
  for (std::size_t got = 0; got < sent;) {
    std::vector<char> v(700);
    const iovec io{v.data(), v.size()};
    const auto done = p.b.receive(&io, 1, false);
    ASSERT_GT(done.bytes, 0u);
    got += done.bytes;
    rung |= done.must_ring;
  }
  EXPECT_TRUE(rung);
  EXPECT_TRUE(p.a.writable());
  EXPECT_FALSE(p.a.want_room());
}

// --- how much of its ring a pipe takes ------------------------------------------------------------------

constexpr std::uint32_t kLargeRing = 8 << 20;

// Memory of the pipe, in bytes.
std::uint64_t memory_of(const Pipe& p) {
  struct stat st {};
  EXPECT_EQ(::fstat(p.memfd(), &st), 0);
  return static_cast<std::uint64_t>(st.st_blocks) * 512;
}

std::size_t fill(Pipe& p, std::size_t block, std::uint64_t from = 0) {
  std::size_t sent = 0;
  for (std::size_t n; (n = put(p, pattern(block, from + sent)).bytes) > 0;) sent += n;
  return sent;
}

TEST(Pipe, TouchesOnePageOfEachRingWhileShortMessagesAreAnswered) {
  for (const std::size_t size : {1, 100, 500, 900}) {
    Pair p(kLargeRing);
    for (int i = 0; i < 5000; ++i) {
      put(p.a, pattern(size, 0));
      ASSERT_EQ(get(p.b, size).size(), size);  // exactly: it never finds the ring empty
      put(p.b, pattern(size, 0));
      ASSERT_EQ(get(p.a, 65536).size(), size);
    }
    EXPECT_LE(memory_of(p.a), 3 * 4096u) << size;
  }
}

TEST(Pipe, StaysSmallWhileItsReaderKeepsUpWithLongMessages) {
  for (const bool answers : {true, false}) {
    Pair p(kLargeRing);
    for (std::uint64_t i = 0; i < 500; ++i) {
      put(p.a, pattern(16000, i));
      ASSERT_EQ(get(p.b, 65536), pattern(16000, i));
      if (!answers) continue;
      put(p.b, {'!'});
      get(p.a, 1);
    }
    EXPECT_LE(memory_of(p.a), answers ? 64 * 1024u : 768 * 1024u);
  }
}

TEST(Pipe, TakesWhatItsLimitsSayFromASenderThatDoesNotWait) {
  struct {
    std::uint64_t sends, receives;
    bool grows;
    std::size_t least, most;
  } cases[] = {{4 << 20, 32 << 20, true, 5000000, 5 << 20},
               {32768, 32 << 20, true, 120000, 160 << 10},
               {32768, 65536, false, 80000, 96 << 10},
               {1 << 20, 2 << 20, false, 3000000, 3 << 20},
               {std::uint64_t{1} << 60, std::uint64_t{1} << 60, false, 7000000, 7 << 20},
               {1, 1, false, 13000, 16 << 10}};
  for (const auto& c : cases) {
    for (const std::size_t block : {1000, 16384, 1 << 20}) {
      Pair p(kLargeRing);
      p.a.set_limits(c.sends, 1, false);
      p.b.set_limits(1, c.receives, c.grows);
      const std::size_t sent = fill(p.a, block);
      // Records are whole lines of 64 bytes.
      EXPECT_GE(sent, c.least * (block == 1000 ? 9 : 10) / 10) << c.sends << " " << block;
      EXPECT_LE(sent, c.most + 2 * 64) << c.sends << " " << block;
      EXPECT_FALSE(p.a.writable());
      EXPECT_EQ(get(p.b, sent + 1), pattern(sent, 0));
      EXPECT_TRUE(p.a.writable());
    }
  }
}

TEST(Pipe, TakesAWindowOnlyFromASenderThatMayWait) {
  Pair p(kLargeRing);
  const auto much = pattern(1 << 20, 0);
  const iovec io{const_cast<char*>(much.data()), much.size()};
  const std::size_t first = p.a.send(&io, 1, PipeRoom::kWindow).bytes;
  EXPECT_GT(first, kPipeWindow / 2);
  EXPECT_LE(first, kPipeWindow + 64);
  EXPECT_FALSE(p.a.writable(PipeRoom::kWindow));
  EXPECT_TRUE(p.a.writable());
  EXPECT_TRUE(p.a.want_room(PipeRoom::kWindow));
  std::vector<char> to(80'000);
  const iovec out{to.data(), to.size()};
  EXPECT_TRUE(p.b.receive(&out, 1, false).must_ring);
  EXPECT_FALSE(p.a.want_room(PipeRoom::kWindow));
  EXPECT_EQ(put(p.a, much, first).bytes, much.size() - first);
  auto got = to;
  const auto rest = get(p.b, much.size());
  got.insert(got.end(), rest.begin(), rest.end());
  EXPECT_EQ(got, much);
}

// As the kernel has it: a third of the room, so that whoever is woken has something to do.
TEST(Pipe, RingsForRoomWhenAThirdIsFree) {
  Pair p(kLargeRing);
  p.a.set_limits(2 << 20, 1, false);
  p.b.set_limits(1, 1 << 20, false);
  const std::size_t sent = fill(p.a, 16384);
  EXPECT_TRUE(p.a.want_room());
  std::size_t got = 0;
  for (bool rung = false; !rung;) {
    std::vector<char> v(10'000);
    const iovec io{v.data(), v.size()};
    const auto done = p.b.receive(&io, 1, false);
    ASSERT_GT(done.bytes, 0u);
    got += done.bytes;
    rung = done.must_ring;
  }
  EXPECT_GT(got, sent / 4);
  EXPECT_LT(got, sent / 2);
  EXPECT_TRUE(p.a.writable());
}

// Wherever the reader stopped: the room is there, before it and behind it.
TEST(Pipe, HasAllItsRoomWhereverItsReaderStands) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 60; ++round) {
    Pair p(kLargeRing);
    p.a.set_limits(2 << 20, 1, false);
    p.b.set_limits(1, 1 << 20, false);
    std::uint64_t sent = 0, got = 0;
    const std::size_t usual = round % 3 == 0 ? 100 : round % 3 == 1 ? 3000 : 40000;
    for (int step = 0; step < 300; ++step) {
      sent += put(p.a, pattern(1 + random() % usual, sent)).bytes;
      if (random() % 3 != 0) {
        const auto bytes = get(p.b, 1 + random() % (usual * 2));
        ASSERT_EQ(bytes, pattern(bytes.size(), got));
        got += bytes.size();
      }
    }
    sent += fill(p.a, 16368, sent);
    // Less what short records leave of their lines.
    EXPECT_GE(sent - got, (round % 3 == 0 ? 2u << 20 : 3u << 20) - 300'000) << round;
    EXPECT_EQ(p.a.end_sending().bytes, 1u);
    const auto rest = get(p.b, sent);
    ASSERT_EQ(rest, pattern(rest.size(), got));
    EXPECT_EQ(rest.size(), sent - got);
    EXPECT_EQ(p.b.front(), PipeFront::kEnd);
  }
}

TEST(Pipe, ReleasesItsMemoryWhenAllHasBeenRead) {
  for (const std::size_t much : {5000, 100'000, 3'000'000}) {
    for (const bool by_reader : {false, true}) {
      Pair p(kLargeRing);
      EXPECT_FALSE(p.a.is_large());
      const auto bytes = pattern(much, 0);
      EXPECT_EQ(put(p.a, bytes).bytes, much);
      EXPECT_TRUE(p.a.is_large());
      EXPECT_EQ(get(p.b, much / 2), pattern(much / 2, 0));
      EXPECT_TRUE(p.b.is_large());
      Pipe& who = by_reader ? p.b : p.a;
      EXPECT_FALSE(who.release());  // not now
      EXPECT_TRUE(who.is_large());
      EXPECT_EQ(get(p.b, much), pattern(much - much / 2, much / 2));
      EXPECT_TRUE(who.release());
      EXPECT_FALSE(who.is_large());
      EXPECT_LE(memory_of(p.a), 3 * 4096u);
      EXPECT_EQ(p.b.front(), PipeFront::kNothing);
      for (std::uint64_t i = 0; i < 300; ++i) {  // and goes on as before
        ASSERT_EQ(put(p.a, pattern(i * 70 + 1, i)).bytes, i * 70 + 1);
        ASSERT_EQ(get(p.b, i * 70 + 1), pattern(i * 70 + 1, i));
        ASSERT_EQ(put(p.b, pattern(i + 1, i)).bytes, i + 1);
        ASSERT_EQ(get(p.a, 65536), pattern(i + 1, i));
        if (i % 7 == 0) (void)who.release();
      }
      EXPECT_TRUE(who.release());
      EXPECT_LE(memory_of(p.a), 3 * 4096u);
    }
  }
}

TEST(Pipe, ReleasesMemoryWhileASenderSends) {
  Pair p(kLargeRing);
  constexpr std::size_t kTotal = 60u << 20;
  std::atomic<bool> over{false};
  std::vector<std::thread> releasing;
  for (Pipe* who : {&p.a, &p.b}) {
    releasing.emplace_back([&, who] {
      while (!over) {
        (void)who->release();
        ::usleep(50);
      }
    });
  }
  std::thread sender([&] {
    for (std::uint64_t sent = 0; sent < kTotal;) {
      const auto bytes = pattern(1 + sent % 50000, sent);
      std::size_t done = 0;
      while (done < bytes.size()) {
        const std::size_t n = put(p.a, bytes, done).bytes;
        if (n == 0) sched_yield();
        done += n;
      }
      sent += bytes.size();
    }
    while (p.a.end_sending().bytes == 0) sched_yield();
  });
  std::uint64_t got = 0;
  for (;;) {
    const auto bytes = get(p.b, 1 + got % 70000);
    if (bytes.empty() && p.b.front() == PipeFront::kEnd) break;
    if (bytes.empty()) sched_yield();
    ASSERT_EQ(bytes, pattern(bytes.size(), got));
    got += bytes.size();
  }
  over = true;
  sender.join();
  for (auto& thread : releasing) thread.join();
  EXPECT_GE(got, kTotal);
}

TEST(Pipe, BreaksOnHopsThatLeadNowhere) {
  constexpr std::uint64_t kTag = std::uint64_t{0xc1} << 56, kSkip = std::uint64_t{0xff} << 32,
                          kJump = std::uint64_t{0xfe} << 32;
  const std::uint64_t bad[][2] = {{kTag | kSkip, 0},             // to itself
                                  {kTag | kJump, 0},             // to itself
                                  {kTag | kJump | 5000, 0},      // out of the ring
                                  {kTag | kJump | 1, kTag | kSkip}};  // to and fro
  for (const auto& heads : bad) {
    Pair p(4096);
    auto* ring = reinterpret_cast<std::byte*>(&p.a.page()) + 4096;
    for (int line = 0; line < 2; ++line) std::memcpy(ring + line * 64, &heads[line], 8);
    EXPECT_EQ(error_of_receiving(p.b), EPROTO);
    EXPECT_EQ(p.b.front(), PipeFront::kBroken);
  }
}

TEST(Pipe, RingsASleeperOncePerSleep) {
  Pair p;
  EXPECT_FALSE(put(p.a, {'1'}).must_ring);
  get(p.b, 10);
  EXPECT_TRUE(p.b.want_data());
  EXPECT_TRUE(put(p.a, {'2'}).must_ring);
  EXPECT_FALSE(put(p.a, {'3'}).must_ring);
  EXPECT_FALSE(p.b.want_data());  // there is something already
}

TEST(Pipe, EndsBehindItsBytes) {
  Pair p;
  put(p.a, {'x'});
  EXPECT_EQ(p.a.end_sending().bytes, 1u);
  EXPECT_EQ(p.b.front(), PipeFront::kBytes);
  EXPECT_EQ(get(p.b, 5).size(), 1u);
  EXPECT_EQ(p.b.front(), PipeFront::kEnd);
  EXPECT_EQ(get(p.b, 5).size(), 0u);
  EXPECT_EQ(p.b.front(), PipeFront::kEnd);
  put(p.b, {'y'});  // the other way is still open
  EXPECT_EQ(get(p.a, 5).size(), 1u);
}

TEST(Pipe, HasRoomForItsEndHoweverFullItIs) {
  for (const std::uint32_t ring : {4096u, 65536u}) {
    for (std::size_t size : {1, 56, 57, 500, 5000}) {
      for (const bool leaves : {false, true}) {
        Pair p(ring);
        std::size_t sent = 0;
        for (std::size_t n; (n = put(p.a, pattern(size, sent)).bytes) > 0;) sent += n;
        EXPECT_EQ((leaves ? p.a.leave() : p.a.end_sending()).bytes, 1u) << size;
        EXPECT_EQ(get(p.b, sent + 1).size(), sent);
        EXPECT_EQ(p.b.front(), leaves ? PipeFront::kLeave : PipeFront::kEnd);
      }
    }
  }
}

TEST(Pipe, TakesNothingAfterItsEnd) {
  Pair p;
  p.a.end_sending();
  EXPECT_EQ(put(p.a, {'x'}).err, EPIPE);
  EXPECT_EQ(p.a.end_sending().err, EPIPE);
  EXPECT_EQ(p.a.leave().err, EPIPE);
}

TEST(Pipe, LeavesBehindItsBytes) {
  Pair p;
  put(p.a, {'x'});
  EXPECT_EQ(p.a.leave().bytes, 1u);
  EXPECT_EQ(p.b.front(), PipeFront::kBytes);
  EXPECT_EQ(get(p.b, 5).size(), 1u);
  EXPECT_EQ(p.b.front(), PipeFront::kLeave);
  EXPECT_EQ(get(p.b, 5).size(), 0u);
}

TEST(Pipe, StopsBeforeABufferThatItsGuardCouldNotCopyAndGoesOn) {
  Pair p;
  static int copies;
  copies = 0;
  Pipe::guard_copies([](void (*copy)(void*), void* argument) {
    if (++copies == 3) return false;
    copy(argument);
    return true;
  });
  const std::vector<char> much = pattern(3 * 16384, 0);  // three records or more
  const Pipe::Done sent = put(p.a, much);
  EXPECT_EQ(sent.err, EFAULT);
  EXPECT_GT(sent.bytes, 0u);
  EXPECT_LT(sent.bytes, much.size());
  EXPECT_EQ(put(p.a, much, sent.bytes).bytes, much.size() - sent.bytes);
  copies = 2;
  std::vector<char> got(much.size());
  const iovec io{got.data(), got.size()};
  const Pipe::Done none = p.b.receive(&io, 1, false);
  EXPECT_EQ(none.err, EFAULT);
  EXPECT_EQ(none.bytes, 0u);
  EXPECT_EQ(get(p.b, much.size()), much);
  Pipe::guard_copies(nullptr);
}

TEST(Pipe, GoesOnInAForkedChild) {
  Pair p;
  put(p.a, {'1'});
  const pid_t child = ::fork();
  if (child == 0) {
    Pipe::after_fork_in_child();
    const bool good = get(p.b, 1) == std::vector<char>{'1'} && put(p.a, {'2'}).bytes == 1;
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(get(p.b, 5), (std::vector<char>{'2'}));
}

// --- the locks, whose words the other end can write ---------------------------------------------------

std::atomic<std::uint32_t>& sending_lock(Pipe& p) { return p.page().ends[p.end()].sender.lock; }
std::atomic<std::uint32_t>& receiving_lock(Pipe& p) { return p.page().ends[p.end()].receiver.lock; }

// A process that lives until the end of the scope, or for `most_s`: a call that waits for it then fails the
// test instead of hanging.
class Bystander {
 public:
  explicit Bystander(bool stopped, unsigned most_s = 60) {
    process_ = ::fork();
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (stopped) ::raise(SIGSTOP);
      ::sleep(most_s);
      ::_exit(0);
    }
    int status = 0;
    if (stopped) {
      EXPECT_EQ(::waitpid(process_, &status, WUNTRACED), process_);
    }
    watch_ = std::thread([this, most_s] {
      for (unsigned i = 0; i < most_s * 100 && !over_; ++i) ::usleep(10'000);
      ::kill(process_, SIGKILL);
      ::waitpid(process_, nullptr, 0);
    });
  }
  ~Bystander() {
    over_ = true;
    watch_.join();
  }
  Bystander(const Bystander&) = delete;
  Bystander& operator=(const Bystander&) = delete;
  std::uint32_t id() const { return static_cast<std::uint32_t>(process_); }

 private:
  pid_t process_ = -1;
  std::atomic<bool> over_{false};
  std::thread watch_;
};

double seconds_of(const std::function<void()>& what) {
  const auto before = std::chrono::steady_clock::now();
  what();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
}

constexpr double kSoon = 9, kAtLast = 45;  ///< 0.5 s and 10 s, on a very busy machine

TEST(Pipe, BreaksSoonWhenTheOwnerOfALockHasDied) {
  Pair p;
  const pid_t child = ::fork();
  if (child == 0) {
    sending_lock(p.a).store(static_cast<std::uint32_t>(::getpid()));
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_LT(seconds_of([&] { EXPECT_EQ(put(p.a, {'x'}).err, EPROTO); }), kSoon);
  EXPECT_EQ(p.b.front(), PipeFront::kBroken);
}

TEST(Pipe, BreaksSoonOnALockThatIsNoThreads) {
  Pair p;
  sending_lock(p.a).store(0x40000001u);
  EXPECT_LT(seconds_of([&] { EXPECT_EQ(put(p.a, {'x'}).err, EPROTO); }), kSoon);
}

TEST(Pipe, BreaksSoonOnALockWithTheCallersIdThatTheCallerNeverTook) {
  Pair p;
  Pipe::after_fork_in_child();  // learn the thread's id anew
  const auto me = static_cast<std::uint32_t>(::gettid());
  put(p.a, {'x'});
  receiving_lock(p.b).store(me);
  EXPECT_EQ(p.b.front(), PipeFront::kBytes);  // a thread that only looks does not wait
  EXPECT_LT(seconds_of([&] { EXPECT_EQ(error_of_receiving(p.b), EPROTO); }), kSoon);
  EXPECT_EQ(p.b.front(), PipeFront::kBroken);
  Pair q;
  sending_lock(q.a).store(me);
  EXPECT_LT(seconds_of([&] { EXPECT_EQ(put(q.a, {'y'}).err, EPROTO); }), kSoon);
}

TEST(Pipe, WaitsForAnOwnerThatLetsGo) {
  Pair p;
  Bystander living(false);
  sending_lock(p.a).store(living.id());
  std::thread owner([&] {
    ::usleep(1'500'000);
    sending_lock(p.a).store(0);
  });
  EXPECT_EQ(put(p.a, {'x'}).bytes, 1u);
  owner.join();
  EXPECT_EQ(get(p.b, 5), (std::vector<char>{'x'}));
}

// A peer that writes the id of somebody alive, of somebody stopped, of either in turn.
TEST(Pipe, BreaksAtLastOnALockThatIsNotLetGoWhoeverItNames) {
  Bystander living(false), stopped(true);
  Pair named_living, named_stopped, named_both;
  sending_lock(named_living.a).store(living.id());
  put(named_stopped.b, {'x'});
  receiving_lock(named_stopped.a).store(stopped.id());
  sending_lock(named_both.a).store(living.id());
  std::atomic<bool> over{false};
  std::thread writer([&] {
    for (std::uint32_t turn = 0; !over; ++turn) {
      sending_lock(named_both.a).store(turn % 2 == 0 ? living.id() : stopped.id());
      ::usleep(200'000);
    }
  });
  std::vector<std::thread> callers;
  double took[3] = {};
  callers.emplace_back(
      [&] { took[0] = seconds_of([&] { EXPECT_EQ(put(named_living.a, {'x'}).err, EPROTO); }); });
  callers.emplace_back(
      [&] { took[1] = seconds_of([&] { EXPECT_EQ(error_of_receiving(named_stopped.a), EPROTO); }); });
  callers.emplace_back(
      [&] { took[2] = seconds_of([&] { EXPECT_EQ(put(named_both.a, {'x'}).err, EPROTO); }); });
  for (auto& caller : callers) caller.join();
  over = true;
  writer.join();
  for (const double seconds : took) EXPECT_LT(seconds, kAtLast);
}

TEST(Pipe, HasNoRoomWhileMemoryIsReleasedByAThreadThatWasStopped) {
  Pair p(kLargeRing);
  Bystander stopped(true);
  sending_lock(p.a).store(stopped.id() | 1u << 31);
  const auto done = put(p.a, {'x'});
  EXPECT_EQ(done.err, 0);
  EXPECT_EQ(done.bytes, 0u);
  sending_lock(p.a).store(0);
  EXPECT_EQ(put(p.a, {'x'}).bytes, 1u);
  sending_lock(p.b).store(0x3fffffffu | 1u << 31);  // no thread
  EXPECT_LT(seconds_of([&] { EXPECT_EQ(put(p.b, {'x'}).err, EPROTO); }), kSoon);
}

TEST(Pipe, IsNotMendedByThePeerOnceItHasBroken) {
  Pair p;
  put(p.b, {'x'});
  sending_lock(p.a).store(0x40000001u);
  EXPECT_EQ(put(p.a, {'x'}).err, EPROTO);
  Bystander living(false);
  for (auto* lock : {&sending_lock(p.a), &receiving_lock(p.a)}) lock->store(living.id());
  p.a.page().head.broken.store(0);
  EXPECT_LT(seconds_of([&] {
              EXPECT_EQ(put(p.a, {'x'}).err, EPROTO);
              EXPECT_EQ(p.a.front(), PipeFront::kBroken);
              EXPECT_EQ(p.a.readable_bytes(), 0u);
            }),
            kSoon);
  for (auto* lock : {&sending_lock(p.a), &receiving_lock(p.a)}) lock->store(0);
  p.a.page().head.broken.store(0);
  EXPECT_EQ(put(p.a, {'x'}).err, EPROTO);
  EXPECT_EQ(p.a.front(), PipeFront::kBroken);
}

// Job control stops owner and waiter alike, for hours perhaps.
TEST(Pipe, CountsOnlyTheTimeInWhichTheWaiterRuns) {
  Pair p;
  int go_on[2];
  ASSERT_EQ(::pipe2(go_on, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    Pipe::after_fork_in_child();
    std::atomic<bool> holds{false};
    std::thread owner([&] {
      sending_lock(p.a).store(static_cast<std::uint32_t>(::gettid()));
      holds = true;
      char byte = 0;
      while (::read(go_on[0], &byte, 1) < 0) continue;
      sending_lock(p.a).store(0);
    });
    while (!holds) sched_yield();
    const bool good = put(p.a, {'x'}).bytes == 1;
    owner.join();
    ::_exit(good ? 0 : 1);
  }
  ::usleep(500'000);  // both threads are where they should be
  ::kill(child, SIGSTOP);
  ::usleep(11'000'000);
  ::kill(child, SIGCONT);
  ::usleep(500'000);
  EXPECT_EQ(::write(go_on[1], "x", 1), 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ::close(go_on[0]);
  ::close(go_on[1]);
}

// A fault in the caller's buffer runs a handler in the middle of the copy, under the lock.
struct Interruption {
  static inline Pair* pair = nullptr;
  static inline Pair* other = nullptr;
  static inline char* page = nullptr;
  static inline int faults = 0;
  static inline Pipe::Done sent, received, elsewhere;
  static inline PipeFront front = PipeFront::kNothing;
  static inline std::uint64_t readable = 0;
  static inline std::chrono::duration<double> took{};

  static void handler(int) {
    if (++faults > 1) ::_exit(1);
    const auto before = std::chrono::steady_clock::now();
    char byte = 'z';
    const iovec io{&byte, 1};
    sent = pair->a.send(&io, 1);
    elsewhere = other->a.send(&io, 1);
    received = pair->b.receive(&io, 1, false);
    front = pair->b.front();
    readable = pair->b.readable_bytes();
    took = std::chrono::steady_clock::now() - before;
    ::mprotect(page, 4096, PROT_READ | PROT_WRITE);
  }
};

void interrupt(Pair& p, Pair& other, const std::function<void(char*)>& call) {
  void* page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  struct sigaction action {}, old {};
  action.sa_handler = Interruption::handler;
  ASSERT_EQ(::sigaction(SIGSEGV, &action, &old), 0);
  Interruption::pair = &p;
  Interruption::other = &other;
  Interruption::page = static_cast<char*>(page);
  Interruption::faults = 0;
  call(static_cast<char*>(page));
  EXPECT_EQ(Interruption::faults, 1);
  EXPECT_LT(Interruption::took.count(), kSoon);
  ::sigaction(SIGSEGV, &old, nullptr);
  ::munmap(page, 4096);
}

TEST(Pipe, TellsAHandlerThatItHasInterruptedASend) {
  Pair p, other;
  interrupt(p, other, [&](char* page) {
    const iovec io{page, 100};
    EXPECT_EQ(p.a.send(&io, 1).bytes, 100u);
  });
  EXPECT_EQ(Interruption::sent.err, EDEADLK);
  EXPECT_EQ(Interruption::sent.bytes, 0u);
  EXPECT_EQ(Interruption::received.err, 0);  // the other direction's lock is another
  EXPECT_EQ(Interruption::elsewhere.bytes, 1u);
  EXPECT_EQ(get(p.b, 500), std::vector<char>(100));
  EXPECT_EQ(put(p.a, {'y'}).bytes, 1u);
}

TEST(Pipe, TellsAHandlerThatItHasInterruptedAReceive) {
  Pair p, other;
  const auto bytes = pattern(100, 0);
  put(p.a, bytes);
  interrupt(p, other, [&](char* page) {
    const iovec io{page, 50};
    EXPECT_EQ(p.b.receive(&io, 1, false).bytes, 50u);
    EXPECT_EQ(std::vector<char>(page, page + 50), std::vector<char>(bytes.begin(), bytes.begin() + 50));
  });
  EXPECT_EQ(Interruption::received.err, EDEADLK);
  EXPECT_EQ(Interruption::received.bytes, 0u);
  EXPECT_EQ(Interruption::front, PipeFront::kBytes);
  EXPECT_EQ(Interruption::readable, 0u);
  EXPECT_EQ(Interruption::sent.bytes, 1u);
  auto rest = std::vector<char>(bytes.begin() + 50, bytes.end());
  rest.push_back('z');
  EXPECT_EQ(get(p.b, 500), rest);
}

TEST(Pipe, BreaksOnEmptyRecordsWithoutEnd) {
  Pair p(4096);
  auto* ring = reinterpret_cast<std::byte*>(&p.a.page()) + 4096;
  for (std::size_t line = 0; line < 4096 / 64; ++line) {
    const std::uint64_t head = std::uint64_t{0xc1} << 56 | std::uint64_t{1} << 32;  // 0 bytes, type 1
    std::memcpy(ring + line * 64, &head, sizeof head);
  }
  std::vector<char> v(100);
  const iovec io{v.data(), v.size()};
  EXPECT_EQ(p.b.receive(&io, 1, false).err, EPROTO);
  EXPECT_EQ(p.b.front(), PipeFront::kBroken);
}

TEST(Pipe, RefusesWhatIsNotAPipe) {
  EXPECT_EQ(Pipe::create("x", 5000, 0).error().err, EINVAL);
  EXPECT_EQ(Pipe::create("x", 2048, 0).error().err, EINVAL);
  const int unsealed = ::memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(unsealed, 4096 + 2 * kRing), 0);
  EXPECT_EQ(Pipe::open(::dup(unsealed), 0).error().err, EPROTO);
  ASSERT_EQ(::fcntl(unsealed, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  EXPECT_EQ(Pipe::open(unsealed, 0).error().err, EPROTO);
  EXPECT_FALSE(Pipe::open(-1, 0).ok());
}

// Whatever the other end writes into the shared pages, nothing is read or written out of bounds, and no
// call hangs (the sanitizers watch).
TEST(Pipe, SurvivesARandomisedPage) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    Pair p(4096);
    for (int i = 0; i < 5; ++i) put(p.a, pattern(random() % 900, 0));
    auto* words = reinterpret_cast<std::uint64_t*>(&p.a.page().ends[0]);
    for (int hit = 0; hit < 3; ++hit) {
      const std::size_t many = random() % 2 == 0 ? sizeof(PipePage::End) * 2 / 8 : (4096 + 8192) / 8 - 16;
      std::uint64_t& word = words[random() % many];
      // Not the locks: a lock that names somebody alive is waited for.
      auto* at = reinterpret_cast<char*>(&word);
      bool lock = false;
      for (auto& end : p.a.page().ends) {
        for (void* l : {static_cast<void*>(&end.sender.lock), static_cast<void*>(&end.receiver.lock)}) {
          lock |= static_cast<char*>(l) >= at && static_cast<char*>(l) < at + 8;
        }
      }
      if (!lock) word = random() % 3 == 0 ? random() : word ^ (std::uint64_t{1} << random() % 64);
    }
    for (int i = 0; i < 20; ++i) {
      put(p.a, pattern(random() % 3000, 0));
      get(p.b, random() % 3000, random() % 4 == 0);
      (void)p.b.front();
      (void)p.b.readable_bytes();
      (void)p.a.writable();
      (void)p.a.unread_by_peer();
    }
  }
}

TEST(Pipe, CarriesAStreamBetweenThreads) {
  Pair p;
  constexpr std::size_t kTotal = 20u << 20;
  std::thread sender([&] {
    for (std::uint64_t sent = 0; sent < kTotal;) {
      const auto bytes = pattern(1 + sent % 5000, sent);
      std::size_t done = 0;
      while (done < bytes.size()) {
        const std::size_t n = put(p.a, bytes, done).bytes;
        if (n == 0) sched_yield();
        done += n;
      }
      sent += bytes.size();
    }
    while (p.a.end_sending().bytes == 0) sched_yield();
  });
  std::uint64_t got = 0;
  for (;;) {
    const auto bytes = get(p.b, 1 + got % 7000);
    if (bytes.empty()) {
      if (p.b.front() == PipeFront::kEnd) break;
      sched_yield();
      continue;
    }
    ASSERT_EQ(bytes, pattern(bytes.size(), got));
    got += bytes.size();
  }
  sender.join();
  EXPECT_GE(got, kTotal);
}

}  // namespace
}  // namespace clan
