// Whose turn it is with memory that a link goes on to read.
#include "nic/pinned_payload.h"

#include <gtest/gtest.h>

#include <thread>

namespace clan::nic {
namespace {

TEST(PinnedPayload, IsTheWritersAgainBehindTheLinksLastRead) {
  PinnedPayload kept(1);
  ASSERT_TRUE(kept.is_free());
  kept.bytes[0] = std::byte{1};
  kept.hand_over();
  EXPECT_FALSE(kept.is_free());
  std::byte read{};
  std::thread link([&] {
    read = kept.bytes[0];
    kept.let_go();
  });
  while (!kept.is_free()) std::this_thread::yield();
  kept.bytes[0] = std::byte{2};
  link.join();
  EXPECT_EQ(read, std::byte{1});
}

}  // namespace
}  // namespace clan::nic
