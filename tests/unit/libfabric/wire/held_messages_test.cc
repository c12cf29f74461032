#include "wire/held_messages.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace clan::ofi {
namespace {

struct HeldMessagesTest : testing::Test {
  HeldMessages held;
  std::set<PeerIndex> owed, gone;
  std::vector<PeerIndex> resume() {
    std::vector<PeerIndex> resumed;
    held.resume([&](PeerIndex p) { return owed.contains(p); },
                [&](PeerIndex p) { return gone.contains(p); },
                [&](PeerIndex p) { resumed.push_back(p); });
    return resumed;
  }
};

using Peers = std::vector<PeerIndex>;

TEST_F(HeldMessagesTest, AnAccessIsHeldUntilItsInitiatorHasMadeIt) {
  SharedAccessWord word{kAccessOurs};
  held.add(1, &word);
  EXPECT_EQ(resume(), Peers());
  word = kAccessRefused;
  EXPECT_EQ(resume(), Peers());
  end_own_access(word, true);
  EXPECT_EQ(resume(), Peers({1}));
  EXPECT_TRUE(held.empty());
}

TEST_F(HeldMessagesTest, ARequestIsHeldWhileItsPeerDoesNotTakeReplies) {
  owed = {2};
  held.add(1, nullptr);
  held.add(2, nullptr);
  EXPECT_EQ(resume(), Peers({1}));
  owed.clear();
  EXPECT_EQ(resume(), Peers({2}));
}

TEST_F(HeldMessagesTest, NothingIsHeldForAPeerThatHasGone) {
  SharedAccessWord word{kAccessOurs};
  owed = {2};
  held.add(1, &word);
  held.add(2, nullptr);
  gone = {1, 2};
  EXPECT_EQ(resume(), Peers({1, 2}));
}

TEST_F(HeldMessagesTest, ForgetsWhatAnEndedConnectionHeld) {
  SharedAccessWord word{kAccessDone};
  held.add(1, &word);
  held.add(2, &word);
  held.forget(1);
  EXPECT_EQ(resume(), Peers({2}));
}

}  // namespace
}  // namespace clan::ofi
