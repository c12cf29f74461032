#include "stream/memory.h"

#include <vector>

#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

/// A connection that has carried much.
struct Memory : testing::Test {
  Memory() {
    pair.migrate();
    carry();
    // Receives that found nothing may have released it: the clock of that begins anew.
    s.released_ns = 0;
    carry();
  }
  void carry() {
    const std::string block(100'000, 'x');
    while (pair.send(0, block) > 0) {
    }
    while (!pair.receive(1, 1 << 20, MSG_DONTWAIT | MSG_PEEK).empty() &&
           !pair.receive(1, 60'000).empty()) {
    }
  }
  TcpPair pair;
  const int fd = pair.fd(1);
  Socket& s = pair.socket(1);
};

TEST_F(Memory, IsNotOwedByAConnectionThatIsSilent) {
  TcpPair small;
  small.migrate();
  ASSERT_EQ(small.send(0, "x"), 1);
  EXPECT_EQ(small.receive(1), "x");
  (void)release_memory();
  EXPECT_EQ(release_memory(), -1);
}

TEST_F(Memory, IsGivenBackBeforeASleep) {
  ASSERT_TRUE(s.pipe.is_large());
  s.owes_memory = false;
  s.released_ns = 0;
  owe_memory(fd, s, false);
  EXPECT_TRUE(s.owes_memory);
  EXPECT_EQ(release_memory(), -1);
  EXPECT_FALSE(s.pipe.is_large());
  EXPECT_FALSE(s.owes_memory);
}

TEST_F(Memory, IsGivenBackAtMostOnceASecond) {
  ASSERT_TRUE(s.pipe.is_large());
  s.owes_memory = false;
  s.released_ns = monotonic_ns();
  owe_memory(fd, s, false);
  const std::int64_t again = release_memory();
  EXPECT_GT(again, 0);
  EXPECT_LE(again, kSecond);
  EXPECT_TRUE(s.pipe.is_large());
  EXPECT_TRUE(s.owes_memory);
}

TEST_F(Memory, ThatTheOtherEndHasNotReadIsLookedAtAFewTimesMore) {
  ASSERT_EQ(pair.send(0, std::string(100'000, 'x')), 100'000);
  ASSERT_TRUE(s.pipe.is_large());
  const auto second_is_over = [&] { s.released_ns = pair.socket(0).released_ns = 0; };
  second_is_over();
  s.owes_memory = false;
  owe_memory(fd, s, false);
  int looks = 0;
  for (; release_memory() == kSecond && looks < 20; ++looks) second_is_over();
  EXPECT_EQ(looks, 3);
  EXPECT_TRUE(s.pipe.is_large()) << "its reader sees to it";
}

TEST_F(Memory, IsGivenBackAtOnceByAReceiveThatFindsNothing) {
  ASSERT_TRUE(s.pipe.is_large());
  s.owes_memory = false;
  s.released_ns = 0;
  owe_memory(fd, s, true);
  EXPECT_FALSE(s.pipe.is_large());
  EXPECT_FALSE(s.owes_memory);
}

TEST_F(Memory, OfASocketThatIsGoneIsNotOwed) {
  s.owes_memory = false;
  s.released_ns = monotonic_ns();
  owe_memory(fd, s, false);
  pair.close(1);
  EXPECT_EQ(release_memory(), -1);
}

TEST_F(Memory, WakesASleepForWhatIsOwedAndNoMore) {
  s.owes_memory = false;
  s.released_ns = monotonic_ns();
  owe_memory(fd, s, false);
  std::vector<std::int64_t> sleeps;
  const auto sleep = [&](std::int64_t ns) {
    sleeps.push_back(ns);
    s.released_ns = 0;  // as if the second were over
    return 0;
  };
  EXPECT_EQ(sleep_releasing(5 * kSecond, sleep), 0);
  ASSERT_EQ(sleeps.size(), 2u);
  EXPECT_LE(sleeps[0], kSecond);
  EXPECT_EQ(sleeps[0] + sleeps[1], 5 * kSecond);
  EXPECT_FALSE(s.pipe.is_large());
}

TEST_F(Memory, EndsASleepThatHasSomethingToTellAsItIs) {
  s.owes_memory = false;
  s.released_ns = monotonic_ns();
  owe_memory(fd, s, false);
  EXPECT_EQ(sleep_releasing(-1, [](std::int64_t) { return 7; }), 7);
  s.released_ns = 0;
  EXPECT_EQ(sleep_releasing(0, [](std::int64_t ns) { return ns == 0 ? 8 : 9; }), 8)
      << "a call that does not wait";
  EXPECT_TRUE(s.pipe.is_large());
}

}  // namespace
}  // namespace clan::preload
