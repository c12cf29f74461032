#include "link/control.h"

#include <gtest/gtest.h>

#include <cstddef>

namespace clan::link {
namespace {

// The same in every version, so that two that do not know each other can say so.
TEST(Control, TheFirstBytesOfAMessageAreTheSameInEveryVersion) {
  EXPECT_EQ(kControlMagic, 0x4e414c43u);
  EXPECT_EQ(offsetof(ControlMessage, magic), 0u);
  EXPECT_EQ(offsetof(ControlMessage, version), 4u);
  EXPECT_EQ(offsetof(ControlMessage, type), 8u);
  EXPECT_EQ(offsetof(ControlMessage, err), 12u);
  EXPECT_EQ(offsetof(ControlMessage, node), 16u);
  EXPECT_EQ(offsetof(ControlMessage, request), 24u);
  EXPECT_EQ(static_cast<std::uint32_t>(ControlType::kHello), 1u);
  EXPECT_EQ(static_cast<std::uint32_t>(ControlType::kRefuse), 3u);
}

TEST(Control, AMessageBeginsAsOneOfThisVersionThatSaysNothing) {
  const ControlMessage message;
  EXPECT_EQ(message.magic, kControlMagic);
  EXPECT_EQ(message.version, shm::kLayoutVersion);
  EXPECT_EQ(message.err, 0);
  EXPECT_EQ(message.memory_id, 0u);
  EXPECT_EQ(message.oob.length, 0u);
}

}  // namespace
}  // namespace clan::link
