#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "support/backoff.h"
#include "support/pipe_pair.h"

namespace clan {
namespace {

// --- how much of its ring a pipe takes -----------------------------------------------------------

// Memory of the pipe, in bytes.
std::uint64_t memory_of(const Pipe& p) {
  struct stat st {};
  EXPECT_EQ(::fstat(p.memfd(), &st), 0);
  return static_cast<std::uint64_t>(st.st_blocks) * 512;
}

std::size_t fill(Pipe& p, std::size_t block, std::uint64_t from = 0) {
  std::size_t sent = 0;
  for (std::size_t n; (n = put(p, bytes_from(block, from + sent)).bytes) > 0;) sent += n;
  return sent;
}

TEST(Pipe, TouchesOnePageOfEachRingWhileShortMessagesAreAnswered) {
  for (const std::size_t size : {1, 100, 500, 900}) {
    PipePair p(kLargeRing);
    for (int i = 0; i < 5000; ++i) {
      put(p.a, bytes_from(size, 0));
      ASSERT_EQ(get(p.b, size).size(), size);  // exactly: it never finds the ring empty
      put(p.b, bytes_from(size, 0));
      ASSERT_EQ(get(p.a, 65536).size(), size);
    }
    EXPECT_LE(memory_of(p.a), 3 * 4096u) << size;
  }
}

TEST(Pipe, StaysSmallWhileItsReaderKeepsUpWithLongMessages) {
  for (const bool answers : {true, false}) {
    PipePair p(kLargeRing);
    for (std::uint64_t i = 0; i < 500; ++i) {
      put(p.a, bytes_from(16000, i));
      ASSERT_EQ(get(p.b, 65536), bytes_from(16000, i));
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
      PipePair p(kLargeRing);
      p.a.set_limits(c.sends, 1, false);
      p.b.set_limits(1, c.receives, c.grows);
      const std::size_t sent = fill(p.a, block);
      // Records are whole lines of 64 bytes.
      EXPECT_GE(sent, c.least * (block == 1000 ? 9 : 10) / 10) << c.sends << " " << block;
      EXPECT_LE(sent, c.most + 2 * 64) << c.sends << " " << block;
      EXPECT_FALSE(p.a.writable());
      EXPECT_EQ(get(p.b, sent + 1), bytes_from(sent, 0));
      EXPECT_TRUE(p.a.writable());
    }
  }
}

TEST(Pipe, TakesAWindowOnlyFromASenderThatMayWait) {
  PipePair p(kLargeRing);
  const auto much = bytes_from(1 << 20, 0);
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

// As the kernel has it: a third of the room, so that a thread that is woken has something to do.
TEST(Pipe, RingsForRoomWhenAThirdIsFree) {
  PipePair p(kLargeRing);
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
#if defined(__SANITIZE_THREAD__)
  constexpr int kRounds = 15;  // one thread
#else
  constexpr int kRounds = 60;
#endif
  std::mt19937_64 random(11);
  for (int round = 0; round < kRounds; ++round) {
    PipePair p(kLargeRing);
    p.a.set_limits(2 << 20, 1, false);
    p.b.set_limits(1, 1 << 20, false);
    std::uint64_t sent = 0, got = 0;
    const std::size_t usual = round % 3 == 0 ? 100 : round % 3 == 1 ? 3000 : 40000;
    for (int step = 0; step < 300; ++step) {
      sent += put(p.a, bytes_from(1 + random() % usual, sent)).bytes;
      if (random() % 3 != 0) {
        const auto bytes = get(p.b, 1 + random() % (usual * 2));
        ASSERT_EQ(bytes, bytes_from(bytes.size(), got));
        got += bytes.size();
      }
    }
    sent += fill(p.a, 16368, sent);
    // Less what short records leave of their lines.
    EXPECT_GE(sent - got, (round % 3 == 0 ? 2u << 20 : 3u << 20) - 300'000) << round;
    EXPECT_EQ(p.a.end_sending().bytes, 1u);
    const auto rest = get(p.b, sent);
    ASSERT_EQ(rest, bytes_from(rest.size(), got));
    EXPECT_EQ(rest.size(), sent - got);
    EXPECT_EQ(p.b.front(), PipeFront::kEnd);
  }
}

TEST(Pipe, ReleasesItsMemoryWhenAllHasBeenRead) {
  for (const std::size_t much : {5000, 100'000, 3'000'000}) {
    PipePair p(kLargeRing);
    EXPECT_FALSE(p.a.is_large());
    const auto bytes = bytes_from(much, 0);
    EXPECT_EQ(put(p.a, bytes).bytes, much);
    EXPECT_TRUE(p.a.is_large());
    EXPECT_EQ(get(p.b, much / 2), bytes_from(much / 2, 0));
    EXPECT_FALSE(p.b.is_large()) << "it has sent nothing";
    EXPECT_FALSE(p.a.release());  // not now
    EXPECT_TRUE(p.a.is_large());
    EXPECT_EQ(get(p.b, much), bytes_from(much - much / 2, much / 2));
    EXPECT_TRUE(p.a.release());
    EXPECT_FALSE(p.a.is_large());
    EXPECT_LE(memory_of(p.a), 3 * 4096u);
    EXPECT_EQ(p.b.front(), PipeFront::kNothing);
    for (std::uint64_t i = 0; i < 300; ++i) {  // and goes on as before
      ASSERT_EQ(put(p.a, bytes_from(i * 70 + 1, i)).bytes, i * 70 + 1);
      ASSERT_EQ(get(p.b, i * 70 + 1), bytes_from(i * 70 + 1, i));
      ASSERT_EQ(put(p.b, bytes_from(i + 1, i)).bytes, i + 1);
      ASSERT_EQ(get(p.a, 65536), bytes_from(i + 1, i));
      if (i % 7 == 0) (void)p.a.release();
    }
    EXPECT_TRUE(p.a.release());
    EXPECT_TRUE(p.b.release());
    EXPECT_LE(memory_of(p.a), 3 * 4096u);
  }
}

TEST(Pipe, ReleasesMemoryWhileASenderSends) {
  PipePair p(kLargeRing);
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
    test::Backoff backoff;
    for (std::uint64_t sent = 0; sent < kTotal;) {
      const auto bytes = bytes_from(1 + sent % 50000, sent);
      std::size_t done = 0;
      while (done < bytes.size()) {
        const std::size_t n = put(p.a, bytes, done).bytes;
        n == 0 ? backoff.wait() : backoff.reset();
        done += n;
      }
      sent += bytes.size();
    }
    while (p.a.end_sending().bytes == 0) backoff.wait();
  });
  std::uint64_t got = 0;
  test::Backoff backoff;
  for (;;) {
    const auto bytes = get(p.b, 1 + got % 70000);
    if (bytes.empty() && p.b.front() == PipeFront::kEnd) break;
    bytes.empty() ? backoff.wait() : backoff.reset();
    ASSERT_EQ(bytes, bytes_from(bytes.size(), got));
    got += bytes.size();
  }
  over = true;
  sender.join();
  for (auto& thread : releasing) thread.join();
  EXPECT_GE(got, kTotal);
}

}  // namespace
}  // namespace clan
