#include "state/hooks.h"

#include <gtest/gtest.h>

namespace clan::preload {
namespace {

TEST(Hooks, AreAllWiredWhenTheLibraryIsLinked) {
  EXPECT_NE(hooks.left_descriptor, nullptr);
  EXPECT_NE(hooks.migrated, nullptr);
  EXPECT_NE(hooks.demoted, nullptr);
  EXPECT_NE(hooks.pinned, nullptr);
  EXPECT_NE(hooks.set_sleeps, nullptr);
  EXPECT_NE(hooks.put_off, nullptr);
  EXPECT_NE(hooks.said_why, nullptr);
  EXPECT_NE(hooks.unsaid, nullptr);
  EXPECT_NE(hooks.process_said, nullptr);
  EXPECT_NE(hooks.last_close, nullptr);
}

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
