#include "engine/context/fork_registry.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace clan::engine {
namespace {

struct Object : ForkAware {
  Object() { watch_forks(this); }
  ~Object() { unwatch_forks(this); }
  void lock_for_fork() override { seen += 'l'; }
  void unlock_after_fork() override { seen += 'u'; }
  void abandon_after_fork() override { seen += 'a'; }
  std::string seen;
};

// Whether `good()` holds in a child of a fork.
template <typename Good>
bool in_child(Good&& good) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(good() ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  return status == 0;
}

TEST(ForkRegistry, LocksEachObjectAroundAForkAndAbandonsItInTheChild) {
  Object first, second;
  EXPECT_TRUE(in_child([&] { return first.seen == "lua" && second.seen == "lua"; }));
  EXPECT_EQ(first.seen, "lu");
  EXPECT_EQ(second.seen, "lu");
}

TEST(ForkRegistry, ForgetsInTheChildWhatIsTheParents) {
  Object object;
  EXPECT_TRUE(in_child([&] {
    object.seen.clear();
    return in_child([&] { return object.seen.empty(); });
  }));
}

TEST(ForkRegistry, LeavesAnObjectAloneThatHasEnded) {
  Object kept;
  { Object gone; }
  EXPECT_TRUE(in_child([&] { return kept.seen == "lua"; }));
}

TEST(ForkRegistry, TakesANewObjectInTheChild) {
  EXPECT_TRUE(in_child([] {
    Object own;
    return in_child([&] { return own.seen == "lua"; }) && own.seen == "lu";
  }));
}

}  // namespace
}  // namespace clan::engine
