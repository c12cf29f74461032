#include <gtest/gtest.h>

#include "wait/poll_moved.h"

namespace clan::preload {
namespace {

TEST(KernelWait, CallsWhatItRefersToWithAllThatItIsGiven) {
  int calls = 0;
  pollfd asked[2] = {};
  auto wait = [&](pollfd* fds, nfds_t count, std::int64_t ns) {
    ++calls;
    EXPECT_EQ(fds, asked);
    EXPECT_EQ(count, 2u);
    EXPECT_EQ(ns, std::int64_t{5'000'000'000});
    return 7;
  };
  const KernelPoll poll = wait;
  EXPECT_EQ(poll(asked, 2, 5'000'000'000), 7);
  EXPECT_EQ(calls, 1) << "the function itself, no copy of it";
}

TEST(KernelWait, ACopyRefersToTheFunctionAndNotToTheReference) {
  int left = 3;
  auto wait = [&left](epoll_event*, int, std::int64_t) { return left--; };
  KernelEpoll* first = new KernelEpoll(wait);
  const KernelEpoll second(*first);
  EXPECT_EQ((*first)(nullptr, 0, 0), 3);
  delete first;
  EXPECT_EQ(second(nullptr, 0, 0), 2);
  EXPECT_EQ(left, 1);
}

}  // namespace
}  // namespace clan::preload
