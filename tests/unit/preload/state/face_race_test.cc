// What an end sees of the other one by its state: ThreadSanitizer tells whether that may be used.
#include <gtest/gtest.h>

#include "state/face.h"
#include "support/hand_over.h"

namespace clan::preload {
namespace {

TEST(Face, OneThatSeesABitSeesWhatWasWrittenBefore) {
  static PipePage::Face face{};
  int before = 0;
  test::hand_over(
      [&] {
        before = 1;
        add_state(face, socket_face::kGone);
      },
      [&] {
        EXPECT_EQ(state_of(face), socket_face::kGone);
        EXPECT_EQ(before, 1);
      });
}

}  // namespace
}  // namespace clan::preload
