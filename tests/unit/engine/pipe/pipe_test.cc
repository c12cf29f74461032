#include "clan/face/pipe.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <thread>
#include <vector>

#include "support/backoff.h"
#include "support/pipe_pair.h"

namespace clan {
namespace {

TEST(Pipe, CarriesBytesBothWays) {
  PipePair p;
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
    PipePair p(ring);
    std::mt19937_64 random(ring);
    std::uint64_t sent = 0, got = 0;
    for (int step = 0; step < 20000; ++step) {
      const std::size_t n = 1 + (random() % 4 == 0 ? random() % 70000 : random() % 200);
      if (random() % 2 == 0) {
        auto bytes = bytes_from(n, sent);
        // In up to three buffers, empty ones among them.
        iovec io[3];
        const std::size_t first = random() % (n + 1), second = random() % (n - first + 1);
        io[0] = {bytes.data(), first};
        io[1] = {bytes.data() + first, second};
        io[2] = {bytes.data() + first + second, n - first - second};
        sent += p.a.send(io, 3).bytes;
      } else {
        const auto bytes = get(p.b, n);
        ASSERT_EQ(bytes, bytes_from(bytes.size(), got)) << "ring " << ring << " step " << step;
        got += bytes.size();
      }
    }
    while (got < sent) {
      const auto bytes = get(p.b, 10000);
      ASSERT_FALSE(bytes.empty());
      ASSERT_EQ(bytes, bytes_from(bytes.size(), got));
      got += bytes.size();
    }
    EXPECT_EQ(p.b.front(), PipeFront::kNothing);
    EXPECT_TRUE(p.a.writable());
  }
}

TEST(Pipe, StopsWhenFullAndGoesOnWhenRead) {
  PipePair p;
  const auto block = bytes_from(1000, 0);
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

TEST(Pipe, RingsASleeperOncePerSleep) {
  PipePair p;
  EXPECT_FALSE(put(p.a, {'1'}).must_ring);
  get(p.b, 10);
  EXPECT_TRUE(p.b.want_data());
  EXPECT_TRUE(put(p.a, {'2'}).must_ring);
  EXPECT_FALSE(put(p.a, {'3'}).must_ring);
  EXPECT_FALSE(p.b.want_data());  // there is something already
}

TEST(Pipe, GoesOnInAForkedChild) {
  PipePair p;
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

// Whatever the other end writes into the shared pages, nothing is read or written out of bounds,
// and no call hangs (the sanitizers watch).
TEST(Pipe, SurvivesARandomisedPage) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    PipePair p(4096);
    for (int i = 0; i < 5; ++i) put(p.a, bytes_from(random() % 900, 0));
    auto* words = reinterpret_cast<std::uint64_t*>(&p.a.page().ends[0]);
    for (int hit = 0; hit < 3; ++hit) {
      const std::size_t many =
          random() % 2 == 0 ? sizeof(PipePage::End) * 2 / 8 : (4096 + 8192) / 8 - 16;
      std::uint64_t& word = words[random() % many];
      word = random() % 3 == 0 ? random() : word ^ (std::uint64_t{1} << random() % 64);
    }
    for (int i = 0; i < 20; ++i) {
      put(p.a, bytes_from(random() % 3000, 0));
      get(p.b, random() % 3000, random() % 4 == 0);
      (void)p.b.front();
      (void)p.b.readable_bytes();
      (void)p.a.writable();
      (void)p.a.unread_by_peer();
    }
  }
}

TEST(Pipe, CarriesAStreamBetweenThreads) {
  PipePair p;
  constexpr std::size_t kTotal = 20u << 20;
  std::thread sender([&] {
    test::Backoff backoff;
    for (std::uint64_t sent = 0; sent < kTotal;) {
      const auto bytes = bytes_from(1 + sent % 5000, sent);
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
    const auto bytes = get(p.b, 1 + got % 7000);
    if (bytes.empty()) {
      if (p.b.front() == PipeFront::kEnd) break;
      backoff.wait();
      continue;
    }
    backoff.reset();
    ASSERT_EQ(bytes, bytes_from(bytes.size(), got));
    got += bytes.size();
  }
  sender.join();
  EXPECT_GE(got, kTotal);
}

}  // namespace
}  // namespace clan
