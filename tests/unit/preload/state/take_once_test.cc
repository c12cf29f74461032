#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "state/socket_migration.h"

namespace clan::preload {
namespace {

TEST(TakeOnce, HasNothingUntilItIsGivenSomething) {
  KeptFd fd;
  KeptName name;
  EXPECT_EQ(fd.get(), -1);
  EXPECT_EQ(fd.take(), -1);
  EXPECT_EQ(name.take(), 0u);
  fd.keep(7);
  EXPECT_EQ(fd.get(), 7);
}

TEST(TakeOnce, IsTakenByOneOfThoseWhoWantToGiveItBack) {
  for (int round = 0; round < 200; ++round) {
    KeptFd fd;
    fd.keep(round);
    std::atomic<int> takers{0};
    std::vector<std::thread> threads;
    for (int k = 0; k < 4; ++k) threads.emplace_back([&] { takers += fd.take() == round ? 1 : 0; });
    for (auto& thread : threads) thread.join();
    ASSERT_EQ(takers, 1);
    ASSERT_EQ(fd.get(), -1);
  }
}

}  // namespace
}  // namespace clan::preload
