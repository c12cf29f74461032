#include "stream/send.h"

#include <thread>

#include "demote/demote.h"
#include "preload/tcp_pair.h"
#include "stream/close.h"

namespace clan::preload {
namespace {

struct Send : testing::Test {
  Send() { pair.migrate(); }
  TcpPair pair;
};

TEST_F(Send, GoesThroughThePipeInBothDirections) {
  ASSERT_EQ(pair.send(0, "there"), 5);
  ASSERT_EQ(pair.send(1, "back"), 4);
  EXPECT_EQ(pair.receive(1), "there");
  EXPECT_EQ(pair.receive(0), "back");
  EXPECT_EQ(pair.socket(0).pipe.page().ends[0].sender.bytes.load(), 5u);
  EXPECT_EQ(pair.socket(0).pipe.page().ends[1].sender.bytes.load(), 4u);
}

TEST_F(Send, WithoutRoomSaysSoAndCountsIt) {
  const std::string block(1 << 20, 'x');
  while (pair.send(0, block) > 0) {
  }
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_GT(pair.socket(0).full.load(), 0u);
  while (!pair.receive(1, 1 << 20).empty()) {
  }
  EXPECT_GT(pair.send(0, block), 0);
}

TEST_F(Send, ThatWaitsGoesOnWhenThePeerReads) {
  const std::string block(24 << 20, 'x');
  std::size_t received = 0;
  std::thread reader([&] {
    while (received < block.size()) {
      const std::string part = pair.receive(1, 1 << 16, 0);
      if (part.empty()) break;
      received += part.size();
    }
  });
  EXPECT_EQ(pair.send(0, block, MSG_NOSIGNAL), static_cast<ssize_t>(block.size()));
  reader.join();
  EXPECT_EQ(received, block.size());
}

TEST_F(Send, ThatWaitsSendsAllOfItThoughThePeerTakesTheConnectionBack) {
  const std::string block(24 << 20, 'x');
  ssize_t sent = 0;
  std::thread sender([&] {
    sent = pair.send(0, block, MSG_NOSIGNAL);
    EXPECT_EQ(shared_shutdown(pair.fd(0), pair.socket(0), SHUT_WR), 0);
  });
  while (pair.socket(0).pipe.page().ends[0].sender.bytes.load() == 0) ::usleep(100);
  leave_pipe(pair.fd(1), false, reasons::Why::kUrgent);
  std::size_t received = 0;
  for (std::string part; !(part = pair.receive(1, 1 << 16, 0)).empty();) received += part.size();
  sender.join();
  EXPECT_EQ(sent, static_cast<ssize_t>(block.size()));
  EXPECT_EQ(received, block.size());
}

TEST_F(Send, OfAnEndThatReadsNoMoreNoticesThatThePeerHasClosed) {
  ASSERT_EQ(shared_shutdown(pair.fd(0), pair.socket(0), SHUT_RD), 0);
  pair.close(1);
  int error = 0;
  for (int k = 0; k < 2000 && error != EPIPE; ++k) {
    if (pair.send(0, "x") < 0) error = errno;
    ::usleep(100);
  }
  EXPECT_EQ(error, EPIPE);
}

TEST_F(Send, AfterItsOwnEndIsABrokenPipe) {
  ASSERT_EQ(pair.send(0, "x"), 1);
  ASSERT_EQ(shared_shutdown(pair.fd(0), pair.socket(0), SHUT_WR), 0);
  EXPECT_EQ(pair.send(0, "y"), -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_EQ(pair.receive(1), "x");
}

TEST_F(Send, ToABufferThatIsNotThereIsEfault) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "faults are the sanitizer's";
#endif
  const iovec io{reinterpret_cast<void*>(16), 100};
  EXPECT_EQ(shared_send(pair.fd(0), pair.socket(0), &io, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EFAULT);
}

}  // namespace
}  // namespace clan::preload
