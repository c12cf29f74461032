#include "stream/close.h"

#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

struct Close : testing::Test {
  Close() { pair.migrate(); }
  TcpPair pair;
};

TEST_F(Close, WithUnreadBytesIsAResetForThePeer) {
  ASSERT_EQ(pair.send(0, "x"), 1);
  ASSERT_EQ(pair.receive(1), "x");
  ASSERT_EQ(pair.send(0, "unread"), 6);
  pair.close(1);
  EXPECT_EQ(pair.receive(0), "");
  EXPECT_EQ(errno, ECONNRESET);
}

TEST_F(Close, OfOneOfTwoDescriptorsIsNone) {
  const int copy = ::dup(pair.fd(0));
  ASSERT_TRUE(duplicate_entry(pair.fd(0), copy));
  forget(copy);
  ::close(copy);
  ASSERT_EQ(pair.send(0, "on"), 2);
  EXPECT_EQ(pair.receive(1), "on");
}

TEST_F(Close, OfOneDirectionLeavesTheOther) {
  ASSERT_EQ(shared_shutdown(pair.fd(0), pair.socket(0), SHUT_WR), 0);
  EXPECT_EQ(pair.receive(1), "");
  EXPECT_EQ(errno, 0);
  ASSERT_EQ(pair.send(1, "answer"), 6);
  EXPECT_EQ(pair.receive(0), "answer");
}

}  // namespace
}  // namespace clan::preload
