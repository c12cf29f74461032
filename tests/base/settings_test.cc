#include "clan/settings.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace clan {
namespace {

bool is_size(const char* text, std::uint64_t* bytes) {
  SettingFault fault;
  return parse_memory(text, bytes, &fault);
}

TEST(Settings, ASizeIsANumberOfBytesOrOfKMG) {
  std::uint64_t bytes = 0;
  EXPECT_TRUE(is_size("1", &bytes) && bytes == 1);
  EXPECT_TRUE(is_size("65536K", &bytes) && bytes == std::uint64_t{64} << 20);
  EXPECT_TRUE(is_size("1024G", &bytes) && bytes == std::uint64_t{1} << 40);
  for (const char* text : {"", "0", "0G", "64m", "64MB", "-1", "M"})
    EXPECT_FALSE(is_size(text, &bytes)) << text;
}

// 2^34 + 1 GiB is no less than that, although 64 bits hold 1 GiB of it.
TEST(Settings, ASizeThatNobodyHasIsRefusedAndNotCutShort) {
  std::uint64_t bytes = 0;
  for (const char* text : {"1025G", "17179869185G", "17592186044417M", "1099511627777"})
    EXPECT_FALSE(is_size(text, &bytes)) << text << ": " << bytes;
}

}  // namespace
}  // namespace clan
