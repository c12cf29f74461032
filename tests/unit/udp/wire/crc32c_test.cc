// CRC-32C (Castagnoli): the check value of its definition and the vectors of RFC 3720 appendix B.4.
#include <gtest/gtest.h>

#include <array>
#include <string_view>

#include "link/udp/wire/wire.h"
#include "support/pattern.h"

namespace clan::udp {

std::uint32_t crc32c_by_table(std::span<const std::byte> bytes);

namespace {

std::uint32_t of(std::string_view text) { return crc32c(std::as_bytes(std::span(text))); }

TEST(Crc32c, IsThatOfItsDefinition) {
  EXPECT_EQ(of(""), 0u);
  EXPECT_EQ(of("123456789"), 0xe3069283u);
}

TEST(Crc32c, IsThatOfTheVectorsOfIscsi) {
  std::array<std::byte, 32> bytes{};
  EXPECT_EQ(crc32c(bytes), 0x8a9136aau);
  bytes.fill(std::byte{0xff});
  EXPECT_EQ(crc32c(bytes), 0x62a8ab43u);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  EXPECT_EQ(crc32c(bytes), 0x46dd794eu);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(31 - i);
  EXPECT_EQ(crc32c(bytes), 0x113fdb5cu);
}

TEST(Crc32c, GoesOnWhereItStopped) {
  test::Random r(1);
  std::vector<std::byte> bytes(1300);
  for (std::byte& b : bytes) b = static_cast<std::byte>(r.below(256));
  const std::uint32_t whole = crc32c(bytes);
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    const std::span all(bytes);
    ASSERT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), whole) << cut;
  }
}

TEST(Crc32c, IsThatOfTheTableForEveryLengthAndPlace) {
  test::Random r(2);
  std::vector<std::byte> bytes(5000);
  for (std::byte& b : bytes) b = static_cast<std::byte>(r.below(256));
  for (std::size_t n = 0; n < bytes.size() - 8; n += n < 2000 ? 1 : 37) {
    const auto part = std::span(bytes).subspan(n % 8, n);
    ASSERT_EQ(crc32c(part), crc32c_by_table(part)) << n;
  }
}

}  // namespace
}  // namespace clan::udp
