#include "engine/context/fork_registry.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/context/context_core.h"

namespace clan::engine {
namespace {

// Whether `good()` holds in a child of a fork.
template <typename Good>
bool in_child(Good&& good) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(good() ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  return status == 0;
}

TEST(ForkRegistry, AbandonsEachContextInTheChild) {
  const auto first = *ContextCore::create({}), second = *ContextCore::create({});
  EXPECT_TRUE(in_child([&] { return !first->usable() && !second->usable(); }));
  EXPECT_TRUE(first->usable() && second->usable());
}

TEST(ForkRegistry, TakesANewContextInTheChild) {
  const auto context = *ContextCore::create({});
  EXPECT_TRUE(in_child([&] {
    const auto own = *ContextCore::create({});
    return own->usable() && in_child([&] { return !own->usable(); }) && own->usable();
  }));
  EXPECT_TRUE(context->usable());
}

}  // namespace
}  // namespace clan::engine
