#include "state/hooks.h"

#include <gtest/gtest.h>

namespace clan::preload {
namespace {

TEST(Hooks, AReasonIsTakenBackOnlyWhereOneHasBeenSaid) {
  const auto before = hooks.unsaid;
  static int taken_back = 0;
  hooks.unsaid = [](Socket&) { ++taken_back; };
  Socket s;
  unsay(s);
  EXPECT_EQ(taken_back, 0);
  s.said = reasons::Why::kNoPeer;
  unsay(s);
  EXPECT_EQ(taken_back, 1);
  hooks.unsaid = before;
}

}  // namespace
}  // namespace clan::preload
