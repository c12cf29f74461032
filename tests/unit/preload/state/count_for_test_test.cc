// What went by shared memory, added up for tests: each byte once, whichever end counts it.
#include <atomic>
#include <cstdint>

#include "os/test_settings.h"
#include "preload/tcp_pair.h"
#include "state/socket.h"

namespace clan::preload {
namespace {

struct CountForTest : testing::Test {
  CountForTest() {
    test_settings.sums = sums;
    pair.migrate();
  }
  ~CountForTest() override { test_settings.sums = before; }
  std::atomic<std::uint64_t>* before = test_settings.sums;
  std::atomic<std::uint64_t> sums[3]{};  ///< streams, bytes of clients, bytes of servers
  TcpPair pair;
};

TEST_F(CountForTest, CountsEachByteOnceThoughBothEndsLook) {
  ASSERT_EQ(pair.send(0, "hello"), 5);
  ASSERT_EQ(pair.send(1, "yes"), 3);
  count_for_test(pair.socket(0));
  EXPECT_EQ(sums[0].load(), 2u);
  EXPECT_EQ(sums[1].load(), 5u);
  EXPECT_EQ(sums[2].load(), 3u);
  count_for_test(pair.socket(1));
  EXPECT_EQ(sums[1].load(), 5u);
  EXPECT_EQ(sums[2].load(), 3u);
}

TEST_F(CountForTest, CountsWhatCameSinceAndNoStreamTwice) {
  ASSERT_EQ(pair.send(0, "hello"), 5);
  count_for_test(pair.socket(1));
  ASSERT_EQ(pair.send(0, "!"), 1);
  count_for_test(pair.socket(0));
  EXPECT_EQ(sums[0].load(), 1u);
  EXPECT_EQ(sums[1].load(), 6u);
}

TEST_F(CountForTest, CountsNothingOfASocketWithoutAPipe) {
  TcpPair other;
  count_for_test(other.socket(0));
  EXPECT_EQ(sums[0].load(), 0u);
}

}  // namespace
}  // namespace clan::preload
