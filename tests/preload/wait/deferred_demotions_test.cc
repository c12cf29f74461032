#include "wait/deferred_demotions.h"

#include <memory>

#include "preload/tcp_pair.h"
#include "state/face.h"
#include "wait/set_lock.h"

namespace clan::preload {
namespace {

TEST(OwedAnswers, AreGivenAtOnceWithoutTheLockOfAllSets) {
  TcpPair pair;
  EXPECT_FALSE(put_off(pair.fd(1), pair.socket(1)));
  EXPECT_EQ(t_owed.count, 0);
}

TEST(OwedAnswers, ArePutOffOncePerSocketAndKeepItUntilTheyArePaid) {
  TcpPair pair;
  pair.migrate();
  const int refs = pair.socket(1).refs.load();
  {
    const Set set;
    const Guard guard(set);
    EXPECT_FALSE(guard.owes());
    EXPECT_TRUE(put_off(pair.fd(1), pair.socket(1)));
    EXPECT_TRUE(put_off(pair.fd(1), pair.socket(1)));
    EXPECT_EQ(t_owed.count, 1);
    EXPECT_TRUE(guard.owes());
    EXPECT_EQ(pair.socket(1).refs.load(), refs + 1);
  }
  EXPECT_EQ(t_owed.count, 0);
  EXPECT_EQ(pair.socket(1).refs.load(), refs);
}

TEST(OwedAnswers, AreGivenWhenTheThreadHasLetGoOfTheLock) {
  TcpPair pair;
  pair.migrate();
  add_state(pair.socket(0).mine(), socket_face::kLeaving);
  {
    const Set set;
    const Guard guard(set);
    EXPECT_TRUE(put_off(pair.fd(1), pair.socket(1)));
    EXPECT_EQ(state_of(pair.socket(1).mine()) & socket_face::kGone, 0u);
  }
  EXPECT_NE(state_of(pair.socket(1).mine()) & socket_face::kGone, 0u);
}

TEST(OwedAnswers, BeyondTheMostAreLeftToTheNextLook) {
  std::unique_ptr<TcpPair> pairs[OwedAnswers::kMost + 2];
  for (auto& pair : pairs) {
    pair = std::make_unique<TcpPair>();
    pair->migrate();
  }
  const Set set;
  const Guard guard(set);
  for (auto& pair : pairs) EXPECT_TRUE(put_off(pair->fd(1), pair->socket(1)));
  EXPECT_EQ(t_owed.count, OwedAnswers::kMost);
}

TEST(OwedAnswers, OfASocketThatHasBeenClosedMeanwhileAreNotGivenToItsSuccessor) {
  TcpPair pair;
  pair.migrate();
  add_state(pair.socket(0).mine(), socket_face::kLeaving);
  const int fd = pair.fd(1);
  const SocketRef socket = pair.held(1);
  std::uint64_t before = 0;
  {
    const Set set;
    const Guard guard(set);
    EXPECT_TRUE(put_off(fd, *socket));
    forget(fd);
    before = state_of(socket->mine());
    EXPECT_EQ(before & socket_face::kGone, 0u);
  }
  EXPECT_EQ(t_owed.count, 0);
  EXPECT_EQ(state_of(socket->mine()), before);
}

}  // namespace
}  // namespace clan::preload
