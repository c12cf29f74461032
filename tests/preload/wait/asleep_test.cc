#include "wait/asleep.h"

#include "preload/wait/set.h"

namespace clan::preload {
namespace {

using AsleepInPoll = EpollSet;

TEST_F(AsleepInPoll, ASocketIsRungForAndCountedAsLongAsItsThreadSleeps) {
  Socket& s = pair.socket(1);
  const auto wishes = [&] { return s.pipe.page().ends[1].receiver.waiting.load(); };
  {
    const Asleep one(pair.fd(1), POLLIN);
    EXPECT_FALSE(one.ready());
    EXPECT_EQ(one.socket(), &s);
    EXPECT_EQ(s.data_sleepers, 1);
    EXPECT_NE(wishes(), 0u);
  }
  EXPECT_EQ(s.data_sleepers, 0);
  EXPECT_EQ(wishes(), 0u);
}

TEST_F(AsleepInPoll, ASocketWithBytesIsReady) {
  ASSERT_EQ(pair.send(0, "x"), 1);
  const Asleep one(pair.fd(1), POLLIN);
  EXPECT_TRUE(one.ready());
}

TEST_F(AsleepInPoll, ASetIsReadyWhenASocketOfItIs) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  ASSERT_EQ(pair.send(0, "x"), 1);
  const Asleep one(epfd, POLLIN);
  EXPECT_TRUE(one.ready());
  EXPECT_EQ(one.socket(), nullptr);
}

TEST_F(AsleepInPoll, ASetOfSocketsThatSayNothingIsNot) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  const Asleep one(epfd, POLLIN);
  EXPECT_FALSE(one.ready());
}

TEST(AsleepMany, EndWhenTheListDoes) {
  struct Counted {
    explicit Counted(int* to) : count(to) { ++*count; }
    ~Counted() { --*count; }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;
    int* count;
  };
  int count = 0;
  for (const nfds_t most : {3u, 100u}) {
    {
      SmallVector<Counted> many(most);
      for (nfds_t i = 0; i < most; ++i) ASSERT_NE(many.add(&count), nullptr);
      EXPECT_EQ(count, static_cast<int>(most));
    }
    EXPECT_EQ(count, 0);
  }
}

}  // namespace
}  // namespace clan::preload
