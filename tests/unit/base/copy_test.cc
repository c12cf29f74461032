#include "clan/detail/copy.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>

namespace clan {
namespace {

TEST(CopyShort, CopiesJustTheseBytesWhateverTheirNumberAndAlignment) {
  std::array<std::byte, 128> from;
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (std::size_t bytes = 0; bytes <= 100; ++bytes) {
    for (std::size_t shift = 0; shift < 9; ++shift) {
      std::array<std::byte, 128> to{};
      copy_short(to.data() + shift, from.data() + 9 - shift, bytes);
      for (std::size_t i = 0; i < to.size(); ++i) {
        const bool inside = i >= shift && i < shift + bytes;
        ASSERT_EQ(to[i], inside ? from[9 - shift + i - shift] : std::byte{})
            << bytes << " bytes, byte " << i;
      }
    }
  }
}

TEST(CopyShort, OfNothingTouchesNothing) { copy_short(nullptr, nullptr, 0); }

}  // namespace
}  // namespace clan
