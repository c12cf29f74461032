// AES-256-GCM by either library: the same bytes, and no other ones are taken.
#ifdef CLAN_CRYPTO_LIBRARY
#include "link/udp/crypto/aead.h"

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "support/pattern.h"

namespace clan::test {
namespace {

using udp::Aead;
using udp::AeadKey;
using udp::Nonce;

std::vector<std::byte> hex(std::string_view digits) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes.push_back(
        static_cast<std::byte>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

Nonce nonce(std::span<const std::byte> bytes) {
  Nonce n{};
  std::copy_n(bytes.begin(), n.size(), n.begin());
  return n;
}

struct Library {
  const char* name;
  std::unique_ptr<Aead> (*make)(AeadKey);
};
void PrintTo(const Library& library, std::ostream* out) { *out << library.name; }

class AeadTest : public testing::TestWithParam<Library> {
 protected:
  void SetUp() override {
    aead_ = GetParam().make(AeadKey(key_));
    if (!aead_) GTEST_SKIP() << "libipsec-mb1 is not installed, or does not know this processor";
  }
  const std::vector<std::byte> key_ = pattern(udp::kAeadKeyBytes, 1);
  const std::vector<std::byte> header_ = pattern(24, 2);
  const Nonce nonce_ = nonce(pattern(udp::kNonceBytes, 3));
  std::unique_ptr<Aead> aead_;
};

INSTANTIATE_TEST_SUITE_P(Libraries, AeadTest,
                         testing::Values(Library{"Openssl", udp::make_openssl_aead},
                                         Library{"IpsecMb", udp::make_ipsec_mb_aead}),
                         [](const auto& p) { return p.param.name; });

// Test case 16 of "The Galois/Counter Mode of Operation (GCM)", McGrew and Viega.
TEST_P(AeadTest, ComesToTheVectorOfTheSpecification) {
  const auto key = hex("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308");
  const auto plain =
      hex("d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c9595"
          "6809532fcf0e2449a6b525b16aedf5aa0de657ba637b39");
  const auto header = hex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
  const auto sealed =
      hex("522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e4859"
          "0dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662");
  const auto tag_wanted = hex("76fc6ece0f4e1768cddf8853bb2d551b");
  const Nonce iv = nonce(hex("cafebabefacedbaddecaf888"));
  const auto aead = GetParam().make(AeadKey(key));
  std::vector<std::byte> body = plain;
  Aead::AeadTag tag{};
  ASSERT_TRUE(aead->encrypt(iv, header, body, &tag));
  EXPECT_EQ(body, sealed);
  EXPECT_EQ(std::vector(tag.begin(), tag.end()), tag_wanted);
  EXPECT_TRUE(aead->decrypt(iv, header, body, tag));
  EXPECT_EQ(body, plain);
}

TEST_P(AeadTest, MakesTheSameBytesAsTheOther) {
  const auto other = udp::make_openssl_aead(AeadKey(key_));
  for (const std::size_t size :
       {0, 1, 7, 8, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1380, 1452, 8952, 65'000}) {
    for (const std::size_t head : {16, 24, 25}) {
      SCOPED_TRACE(std::to_string(size) + " bytes behind " + std::to_string(head));
      const auto plain = pattern(size, 5), header = pattern(head, 6);
      auto one = plain, two = plain;
      Aead::AeadTag a{}, b{};
      ASSERT_TRUE(aead_->encrypt(nonce_, header, one, &a));
      ASSERT_TRUE(other->encrypt(nonce_, header, two, &b));
      EXPECT_TRUE(one == two);
      EXPECT_EQ(a, b);
      EXPECT_TRUE(other->decrypt(nonce_, header, one, a));
      EXPECT_TRUE(aead_->decrypt(nonce_, header, two, b));
      EXPECT_TRUE(one == plain && two == plain);
      ASSERT_TRUE(aead_->encrypt(nonce_, plain, {}, &a)) << "nothing but a header";
      ASSERT_TRUE(other->encrypt(nonce_, plain, {}, &b));
      EXPECT_EQ(a, b);
      EXPECT_TRUE(aead_->decrypt(nonce_, plain, {}, b));
    }
  }
}

TEST_P(AeadTest, RefusesAnyChangedBit) {
  auto sealed = pattern(100, 7);
  Aead::AeadTag tag{};
  ASSERT_TRUE(aead_->encrypt(nonce_, header_, sealed, &tag));
  const auto opens = [&](std::span<const std::byte> header, std::vector<std::byte> body,
                         const Aead::AeadTag& given,
                         const Nonce& with) { return aead_->decrypt(with, header, body, given); };
  for (std::size_t bit = 0; bit < 8 * sealed.size(); ++bit) {
    auto body = sealed;
    body[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_FALSE(opens(header_, body, tag, nonce_)) << "bit " << bit << " of the body";
  }
  for (std::size_t bit = 0; bit < 8 * tag.size(); ++bit) {
    auto other = tag;
    other[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_FALSE(opens(header_, sealed, other, nonce_)) << "bit " << bit << " of the tag";
  }
  auto header = header_;
  header.back() ^= std::byte{1};
  EXPECT_FALSE(opens(header, sealed, tag, nonce_));
  Nonce next = nonce_;
  next.back() ^= std::byte{1};
  EXPECT_FALSE(opens(header_, sealed, tag, next));
  EXPECT_TRUE(opens(header_, sealed, tag, nonce_));
}

TEST_P(AeadTest, TouchesNoByteBesideTheBody) {
  for (std::size_t size = 1; size < 300; ++size) {
    const auto all = pattern(size + 128, 8);
    auto room = all;
    Aead::AeadTag tag{};
    const auto body = std::span(room).subspan(64, size);
    ASSERT_TRUE(aead_->encrypt(nonce_, header_, body, &tag));
    ASSERT_TRUE(aead_->decrypt(nonce_, header_, body, tag));
    EXPECT_TRUE(room == all) << size;
  }
}

TEST(Aead, IsThereWheneverOpensslIs) {
  EXPECT_NE(udp::make_aead(AeadKey(pattern(udp::kAeadKeyBytes, 1))), nullptr);
}

}  // namespace
}  // namespace clan::test
#endif
