// What is deleted is used by nobody any more: ThreadSanitizer sees whether that is so.
#include <gtest/gtest.h>

#include "support/hand_over.h"
#include "system/provider.h"

namespace clan::ofi {
namespace {

TEST(References, OneThatFindsNoneSeesWhatTheHolderHasDone) {
  References references;
  int done = 0;
  references.add();
  test::hand_over([&] { done = 1, references.drop(); },
                  [&] {
                    EXPECT_FALSE(references.any());
                    EXPECT_EQ(done, 1);
                  });
}

}  // namespace
}  // namespace clan::ofi
