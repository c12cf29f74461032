#include "base/random.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <set>

namespace clan {
namespace {

// An independent SipHash-2-4 of any message, checked against the vector of the paper, and then used
// to check ours, which takes exactly 16 bytes.
std::uint64_t reference_siphash(std::uint64_t k0, std::uint64_t k1, const unsigned char* in,
                                std::size_t length) {
  std::uint64_t v[4] = {k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du,
                        k0 ^ 0x6c7967656e657261u, k1 ^ 0x7465646279746573u};
  auto rounds = [&](int n) {
    while (n-- > 0) {
      v[0] += v[1];
      v[2] += v[3];
      v[1] = std::rotl(v[1], 13) ^ v[0];
      v[3] = std::rotl(v[3], 16) ^ v[2];
      v[0] = std::rotl(v[0], 32);
      v[2] += v[1];
      v[0] += v[3];
      v[1] = std::rotl(v[1], 17) ^ v[2];
      v[3] = std::rotl(v[3], 21) ^ v[0];
      v[2] = std::rotl(v[2], 32);
    }
  };
  for (std::size_t block = 0; block <= length / 8; ++block) {
    std::uint64_t m = 0;
    for (std::size_t i = 0; i < 8 && block * 8 + i < length; ++i) {
      m |= std::uint64_t{in[block * 8 + i]} << (8 * i);
    }
    if (block == length / 8) m |= static_cast<std::uint64_t>(length) << 56;
    v[3] ^= m;
    rounds(2);
    v[0] ^= m;
  }
  v[2] ^= 0xff;
  rounds(4);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

constexpr std::uint64_t kPaperKey0 = 0x0706050403020100u;
constexpr std::uint64_t kPaperKey1 = 0x0f0e0d0c0b0a0908u;

TEST(SipHash, AgreesWithTheVectorOfItsPaper) {
  unsigned char message[15];
  for (unsigned i = 0; i < sizeof message; ++i) message[i] = static_cast<unsigned char>(i);
  ASSERT_EQ(reference_siphash(kPaperKey0, kPaperKey1, message, 15), 0xa129ca6149be45e5u);

  unsigned char sixteen[16];
  for (unsigned i = 0; i < sizeof sixteen; ++i) sixteen[i] = static_cast<unsigned char>(i);
  EXPECT_EQ(siphash(kPaperKey0, kPaperKey1, std::as_bytes(std::span(sixteen))),
            reference_siphash(kPaperKey0, kPaperKey1, sixteen, 16));
}

TEST(SipHash, AgreesWithTheReferenceOnOtherInput) {
  std::uint64_t words[4] = {1, 2, 3, 4};
  for (int i = 0; i < 1000; ++i) {
    unsigned char message[16];
    std::memcpy(message, &words[2], 16);
    std::uint64_t h = siphash(words[0], words[1], std::as_bytes(std::span(message)));
    ASSERT_EQ(h, reference_siphash(words[0], words[1], message, 16));
    words[i % 4] ^= h;
  }
}

TEST(SipHash, TakesMessagesOfAnyLength) {
  unsigned char message[64];
  for (unsigned i = 0; i < sizeof message; ++i) message[i] = static_cast<unsigned char>(i);
  const auto bytes = std::as_bytes(std::span(message));
  EXPECT_EQ(siphash(kPaperKey0, kPaperKey1, bytes.first(15)), 0xa129ca6149be45e5u);
  for (std::size_t n = 0; n <= sizeof message; ++n) {
    EXPECT_EQ(siphash(kPaperKey0, kPaperKey1, bytes.first(n)),
              reference_siphash(kPaperKey0, kPaperKey1, message, n))
        << n;
  }
}

TEST(Random, IsNeverZeroAndDoesNotRepeat) {
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    std::uint64_t r = random_u64();
    EXPECT_NE(r, 0u);
    EXPECT_TRUE(seen.insert(r).second);
  }
}

}  // namespace
}  // namespace clan
