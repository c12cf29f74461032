#include "wire/reply_queue.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <map>
#include <string>

#include "transport/peer.h"
#include "wire/wire.h"

namespace clan::ofi {
namespace {

struct ReplyQueueTest : testing::Test {
  std::map<PeerIndex, std::string> sent;
  std::map<PeerIndex, int> err;  ///< of the next attempts
  ReplyQueue queue{[this](PeerIndex to, std::span<const std::byte> message) -> Status {
    if (err[to] != 0) return Error{err[to], "test"};
    sent[to].append(reinterpret_cast<const char*>(message.data()), message.size());
    return {};
  }};
  Peer peer, other;
  ReplyQueueTest() {
    peer.index = 1;
    other.index = 2;
  }
  void reply(Peer& to, const std::string& text) { queue.send(to, std::as_bytes(std::span(text))); }
  void flush_all() {
    queue.flush_all([this](Peer& p) { return queue.flush(p); });
  }
};

TEST_F(ReplyQueueTest, SendsAtOnceWhereThereIsRoom) {
  reply(peer, "a");
  EXPECT_EQ(sent[1], "a");
  EXPECT_FALSE(queue.has_backlog());
}

TEST_F(ReplyQueueTest, KeepsTheOrderOfRepliesThatFindNoRoom) {
  err[1] = EAGAIN;
  reply(peer, "a");
  err[1] = 0;
  reply(peer, "b");  // room, but not before "a"
  EXPECT_EQ(sent[1], "");
  EXPECT_TRUE(queue.has_backlog());
  flush_all();
  EXPECT_EQ(sent[1], "ab");
  EXPECT_FALSE(queue.has_backlog());
  EXPECT_EQ(peer.replies.bytes, 0u);
}

TEST_F(ReplyQueueTest, CountsWhatItKeeps) {
  err[1] = EAGAIN;
  reply(peer, "abc");
  reply(peer, "de");
  EXPECT_EQ(peer.replies.bytes, 5 + 2 * kAnswerCost);
  flush_all();
  EXPECT_EQ(peer.replies.bytes, 5 + 2 * kAnswerCost);
  EXPECT_TRUE(queue.has_backlog());
}

TEST_F(ReplyQueueTest, ForgetsThePeerThatIsGoneAndNoOther) {
  err[1] = err[2] = EAGAIN;
  reply(peer, "a");
  reply(other, "b");
  err[1] = ECONNRESET;
  err[2] = 0;
  flush_all();
  EXPECT_TRUE(peer.replies.empty());
  EXPECT_EQ(peer.replies.bytes, 0u);
  EXPECT_EQ(sent[2], "b");
  EXPECT_FALSE(queue.has_backlog());
}

TEST_F(ReplyQueueTest, OwesNothingToAPeerWithoutAConnection) {
  peer.index = kNoPeer;
  reply(peer, "a");
  EXPECT_TRUE(peer.replies.empty());
  peer.pending = 3;  // asked for: it waits until the peer accepts
  reply(peer, "b");
  EXPECT_FALSE(peer.replies.empty());
}

TEST_F(ReplyQueueTest, FindsAPeerThatIsNotedWhileOthersAreFlushed) {
  err[1] = EAGAIN;
  reply(peer, "a");
  queue.flush_all([this](Peer&) {
    queue.note_backlog(other);
    return true;
  });
  EXPECT_FALSE(peer.replies.backlogged);
  int visited = 0;
  queue.flush_all([&](Peer& p) {
    visited += &p == &other ? 1 : 100;
    return true;
  });
  EXPECT_EQ(visited, 1);
  EXPECT_FALSE(queue.has_backlog());
}

}  // namespace
}  // namespace clan::ofi
