// SharedPages: what parent and child by fork have in common.
#include "os/shared_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <set>

namespace clan::preload {
namespace {

struct SharedWord {
  std::atomic<int> value{7};
  char rest[252];
};

TEST(SharedPagesTest, GiveThingsOfTheirOwnThatAreMade) {
  SharedPages<SharedWord> pages;
  std::set<SharedWord*> all;
  for (int i = 0; i < 100; ++i) {
    SharedWord* one = pages.take();
    ASSERT_NE(one, nullptr);
    EXPECT_EQ(one->value.load(), 7);
    EXPECT_TRUE(all.insert(one).second);
  }
}

TEST(SharedPagesTest, ShowTheParentWhatAChildWrites) {
  SharedPages<SharedWord> pages;
  SharedWord* before = pages.take();
  ASSERT_NE(before, nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    before->value.store(9);
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(before->value.load(), 9);
}

// Both go on to take from what was left of the page, and must not be given the same.
TEST(SharedPagesTest, OfAChildAreNotItsParents) {
  SharedPages<SharedWord> pages;
  SharedWord* before = pages.take();
  ASSERT_NE(before, nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    pages.forked();
    SharedWord* own = pages.take();
    if (own == nullptr) ::_exit(1);
    own->value.store(11);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(pages.take()->value.load(), 7);
}

}  // namespace
}  // namespace clan::preload
