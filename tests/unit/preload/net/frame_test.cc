#include "net/frame.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstring>

namespace clan::preload {
namespace {

Route some_names() {
  Route names;
  ::inet_pton(AF_INET6, "::ffff:10.0.0.1", &names.local.address);
  ::inet_pton(AF_INET6, "::ffff:10.0.0.2", &names.remote.address);
  names.local.port = 40000;
  names.remote.port = 80;
  return names;
}

TEST(CarrierFrame, ComesBackAsItWasWritten) {
  const Frame frames[] = {
      {.type = FrameType::kHello, .length = kNamesBytes, .value = kCarrierWire},
      {.type = FrameType::kSwitch, .value = 0x1234567890abcdef},
      {.type = FrameType::kData, .length = kMostFrameBytes},
      {.type = FrameType::kClosed, .flags = kFrameReset},
      {.type = FrameType::kSwitched},
  };
  for (const Frame& frame : frames) {
    const auto head = encode(frame);
    const auto read = decode(head);
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->type, frame.type);
    EXPECT_EQ(read->flags, frame.flags);
    EXPECT_EQ(read->length, frame.length);
    EXPECT_EQ(read->value, frame.value);
  }
}

TEST(CarrierFrame, OfOtherTypesLengthsAndFlagsIsNone) {
  const Frame wrong[] = {
      {.type = static_cast<FrameType>(0)},
      {.type = static_cast<FrameType>(9)},
      {.type = FrameType::kData, .length = 0},
      {.type = FrameType::kData, .length = kMostFrameBytes + 1},
      {.type = FrameType::kData, .flags = 1, .length = 1},
      {.type = FrameType::kHello, .length = kNamesBytes - 1},
      {.type = FrameType::kEnd, .length = 1},
      {.type = FrameType::kLeave, .value = 1},
      {.type = FrameType::kClosed, .flags = 2},
  };
  for (const Frame& frame : wrong) EXPECT_FALSE(decode(encode(frame)).has_value());
  auto reserved = encode(Frame{.type = FrameType::kEnd});
  reserved[3] = std::byte{1};
  EXPECT_FALSE(decode(reserved).has_value());
}

TEST(CarrierFrame, NamesMirrorThoseOfTheOtherEndAlone) {
  const Route ours = some_names();
  const Route theirs{ours.remote, ours.local};
  EXPECT_TRUE(mirrors(ours, encode(theirs)));
  EXPECT_FALSE(mirrors(ours, encode(ours)));
  Route others = theirs;
  ++others.remote.port;
  EXPECT_FALSE(mirrors(ours, encode(others)));
}

}  // namespace
}  // namespace clan::preload
