#include "stream/receive.h"

#include <thread>

#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

struct Receive : testing::Test {
  Receive() { pair.migrate(); }
  TcpPair pair;
};

TEST_F(Receive, GivesWhatWasSentOnceAndThenNothing) {
  ASSERT_EQ(pair.send(0, "hello"), 5);
  EXPECT_EQ(pair.receive(1), "hello");
  EXPECT_EQ(pair.receive(1), "");
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(Receive, LeavesWhatIsOnlyPeekedAt) {
  ASSERT_EQ(pair.send(0, "hello"), 5);
  EXPECT_EQ(pair.receive(1, 4096, MSG_DONTWAIT | MSG_PEEK), "hello");
  EXPECT_EQ(pair.receive(1, 2), "he");
  EXPECT_EQ(pair.receive(1), "llo");
}

TEST_F(Receive, IsWokenByABell) {
  std::thread sender([&] {
    ::usleep(20'000);
    EXPECT_EQ(pair.send(0, "late"), 4);
  });
  EXPECT_EQ(pair.receive(1, 4096, 0), "late");
  sender.join();
}

TEST_F(Receive, WithWaitallGivesAllThatIsAskedFor) {
  std::thread sender([&] {
    for (const char* part : {"on", "e "}) {
      ::usleep(5'000);
      EXPECT_EQ(pair.send(0, part), 2);
    }
  });
  EXPECT_EQ(pair.receive(1, 4, MSG_WAITALL), "one ");
  sender.join();
}

TEST_F(Receive, EndsAtItsTimeLimit) {
  const timeval limit{0, 20'000};
  ASSERT_EQ(::setsockopt(pair.fd(1), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  EXPECT_EQ(pair.receive(1, 16, 0), "");
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(Receive, IntoANullBufferIsEfaultAndTakesNothing) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "faults are the sanitizer's";
#endif
  ASSERT_EQ(pair.send(0, "hello"), 5);
  iovec io[] = {{nullptr, 3}, {nullptr, 100}};
  for (const int flags : {0, static_cast<int>(MSG_PEEK)}) {
    EXPECT_EQ(shared_receive(pair.fd(1), pair.socket(1), io, 2, flags | MSG_DONTWAIT), -1);
    EXPECT_EQ(errno, EFAULT);
  }
  EXPECT_EQ(shared_receive(pair.fd(1), pair.socket(1), io, 1, MSG_TRUNC), 3) << "which discards";
  EXPECT_EQ(pair.receive(1), "lo");
}

TEST(ReceiveUnread, OfNoBytesIsContentWithThoseOfTcp) {
  TcpPair pair;
  ASSERT_EQ(::send(pair.fd(0), "before", 6, 0), 6);
  pair.migrate();
  for (const int flags : {static_cast<int>(MSG_DONTWAIT), 0}) {
    iovec none{};
    EXPECT_EQ(shared_receive(pair.fd(1), pair.socket(1), &none, 1, flags), 0);
  }
  EXPECT_EQ(pair.receive(1), "before");
}

TEST_F(Receive, SaysTheEndBehindAllBytes) {
  ASSERT_EQ(pair.send(0, "last"), 4);
  pair.close(0);
  EXPECT_EQ(pair.receive(1), "last");
  EXPECT_EQ(pair.receive(1), "");
  EXPECT_EQ(errno, 0);
}

}  // namespace
}  // namespace clan::preload
