// The hooks by which rooms below call those above.
#include <gtest/gtest.h>

#include "state/hooks.h"

namespace clan::preload {
namespace {

TEST(Wiring, GivesEachHookItsFunction) {
  EXPECT_NE(hooks.left_descriptor, nullptr);
  EXPECT_NE(hooks.migrated, nullptr);
  EXPECT_NE(hooks.demoted, nullptr);
  EXPECT_NE(hooks.pinned, nullptr);
  EXPECT_NE(hooks.lost_bells, nullptr);
  EXPECT_NE(hooks.said_why, nullptr);
  EXPECT_NE(hooks.unsaid, nullptr);
  EXPECT_NE(hooks.process_said, nullptr);
  EXPECT_NE(hooks.last_close, nullptr);
}

}  // namespace
}  // namespace clan::preload
