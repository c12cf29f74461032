// Aead: AES-256-GCM (NIST SP 800-38D) under one key. OpenSSL 3 is always there; IPsec-MB (Debian:
// libipsec-mb1) takes a quarter of its time and is used where it loads. Both make the same bytes.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

namespace clan::udp {

constexpr std::size_t kAeadKeyBytes = 32;
constexpr std::size_t kNonceBytes = 12;
constexpr std::size_t kAeadTagBytes = 16;

using AeadKey = std::span<const std::byte, kAeadKeyBytes>;
using Nonce = std::array<std::byte, kNonceBytes>;

/// Not thread-safe. Each nonce is sealed once. Without a body the tag is that of GMAC.
class Aead {
 public:
  using Bytes = std::span<const std::byte>;
  using AeadTag = std::array<std::byte, kAeadTagBytes>;

  virtual ~Aead() = default;
  /// Encrypts `body` in place and tags both. False: failed, and part of `body` may be in clear.
  virtual bool encrypt(const Nonce& nonce, Bytes header, std::span<std::byte> body,
                       AeadTag* tag) = 0;
  /// The reverse. False: the tag is of something else; `body` is then worthless.
  virtual bool decrypt(const Nonce& nonce, Bytes header, std::span<std::byte> body,
                       const AeadTag& tag) = 0;
};

/// Bytes as the libraries have them.
inline const unsigned char* raw(const std::byte* p) {
  return reinterpret_cast<const unsigned char*>(p);
}
inline unsigned char* raw(std::byte* p) { return reinterpret_cast<unsigned char*>(p); }

/// Null: OpenSSL has failed.
std::unique_ptr<Aead> make_openssl_aead(AeadKey key);
/// Null: not installed, another version than it was built for, or an unknown processor.
std::unique_ptr<Aead> make_ipsec_mb_aead(AeadKey key);
/// By the faster of the two that is there. Null: neither.
std::unique_ptr<Aead> make_aead(AeadKey key);

}  // namespace clan::udp
