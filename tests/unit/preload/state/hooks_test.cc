#include "state/hooks.h"

#include <gtest/gtest.h>

namespace clan::preload {
namespace {

TEST(Hooks, SetsAreNotAskedAboutASocketThatIsInNone) {
  const auto before = hooks.set_sleeps;
  hooks.set_sleeps = [](const Socket&, std::uint32_t) { return true; };
  Socket s;
  EXPECT_FALSE(watcher_sleeps(s, 0));
  s.in_sets = true;
  EXPECT_TRUE(watcher_sleeps(s, 0));
  hooks.set_sleeps = before;
}

}  // namespace
}  // namespace clan::preload
