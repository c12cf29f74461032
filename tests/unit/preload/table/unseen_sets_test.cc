#include "table/unseen_sets.h"

#include <sys/epoll.h>

#include "preload/tcp_pair.h"
#include "state/face.h"

namespace clan::preload {
namespace {

// What the last look found has not been paid for: asked until there is a new one.
bool has_one() {
  reasons::Why last = reasons::Why::kNone;
  for (int i = 0; i < 100; ++i) last = unseen_use();
  return last != reasons::Why::kNone;
}

struct OwnSet {
  const int fd = ::epoll_create1(EPOLL_CLOEXEC);
  OwnSet() { forget_set(static_cast<unsigned>(fd), static_cast<unsigned>(fd)); }
  ~OwnSet() { ::close(fd); }
};

TEST(UnseenSets, AreThoseThatNobodyHasSeen) {
  ASSERT_FALSE(has_one());
  const OwnSet set;
  EXPECT_TRUE(has_one());
  saw_set(set.fd);
  EXPECT_FALSE(has_one());
  EXPECT_TRUE(is_seen_set(set.fd));
  forget_set(static_cast<unsigned>(set.fd), static_cast<unsigned>(set.fd));
  EXPECT_FALSE(is_seen_set(set.fd));
  EXPECT_TRUE(has_one());
}

TEST(UnseenSets, AreForgottenByRangesAndNoOthers) {
  for (const int fd : {200, 300, 400, 65535}) saw_set(fd);
  saw_set(-1);
  saw_set(65536);
  EXPECT_TRUE(is_seen_set(65536)) << "past the table there is none that could be found out";
  forget_set(201, 399);
  EXPECT_TRUE(is_seen_set(200));
  EXPECT_FALSE(is_seen_set(300));
  EXPECT_TRUE(is_seen_set(400));
  forget_set(200, ~0u);  // below there may be sets of others
  EXPECT_FALSE(is_seen_set(200));
  EXPECT_FALSE(is_seen_set(65535));
}

TEST(UnseenSets, TakeBackWhatHasMoved) {
  ASSERT_FALSE(has_one());
  TcpPair pair;
  pair.migrate_and_greet();
  const OwnSet set;
  EXPECT_TRUE(has_one());
  EXPECT_NE(state_of(pair.socket(0).mine()) & socket_face::kLeaving, 0u);
  EXPECT_NE(state_of(pair.socket(1).mine()) & socket_face::kLeaving, 0u);
}

TEST(UnseenSets, AreLookedForByACallThatFindsNothing) {
  ASSERT_FALSE(has_one());
  TcpPair pair;
  pair.migrate_and_greet();
  const OwnSet set;
  for (int i = 0; i < 40; ++i) EXPECT_EQ(pair.receive(1), "");
  EXPECT_NE(state_of(pair.socket(1).mine()) & socket_face::kLeaving, 0u);
}

}  // namespace
}  // namespace clan::preload
