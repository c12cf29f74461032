#include "state/ring_memory.h"

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
  const int fd = pair.fd(0);
  Socket& s = pair.socket(0);
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
  owe_memory(fd, s);
  EXPECT_TRUE(s.owes_memory);
  EXPECT_EQ(release_memory(), -1);
  EXPECT_FALSE(s.pipe.is_large());
  EXPECT_FALSE(s.owes_memory);
}

TEST_F(Memory, IsGivenBackAtMostOnceASecond) {
  ASSERT_TRUE(s.pipe.is_large());
  s.owes_memory = false;
  s.released_ns = monotonic_ns();
  owe_memory(fd, s);
  const std::int64_t again = release_memory();
  EXPECT_GT(again, 0);
  EXPECT_LE(again, kSecond);
  EXPECT_TRUE(s.pipe.is_large());
  EXPECT_TRUE(s.owes_memory);
}

TEST_F(Memory, ThatTheOtherEndHasNotReadIsLookedAtEverMoreSeldom) {
  ASSERT_EQ(pair.send(0, std::string(100'000, 'x')), 100'000);
  ASSERT_TRUE(s.pipe.is_large());
  s.owes_memory = false;
  owe_memory(fd, s);
  for (std::int64_t rest = 2; rest <= 16; rest *= 2) {
    s.released_ns = 0;
    EXPECT_EQ(release_memory(), rest * kSecond);
  }
  EXPECT_EQ(pair.receive(1, 100'000).size(), 100'000u);
  s.released_ns = 0;
  EXPECT_EQ(release_memory(), -1);
  EXPECT_FALSE(s.pipe.is_large());
}

TEST_F(Memory, OfASocketThatIsGoneIsNotOwed) {
  s.owes_memory = false;
  s.released_ns = monotonic_ns();
  owe_memory(fd, s);
  pair.close(0);
  EXPECT_EQ(release_memory(), -1);
}

TEST_F(Memory, WakesASleepForWhatIsOwedAndNoMore) {
  s.owes_memory = false;
  s.released_ns = monotonic_ns();
  owe_memory(fd, s);
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
  owe_memory(fd, s);
  EXPECT_EQ(sleep_releasing(-1, [](std::int64_t) { return 7; }), 7);
  s.released_ns = 0;
  EXPECT_EQ(sleep_releasing(0, [](std::int64_t ns) { return ns == 0 ? 8 : 9; }), 8)
      << "a call that does not wait";
  EXPECT_TRUE(s.pipe.is_large());
}

}  // namespace
}  // namespace clan::preload
