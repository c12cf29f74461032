// Security and Session: the transport's cryptography as an interface, for modes 1 and 2; mode 0 has
// neither (docs/wire.md). Implementations come from a maintained library, loaded when a mode needs
// it. Not thread-safe: used under the endpoint's lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "clan/result.h"
#include "link/udp/wire/wire.h"

namespace clan::udp {

using Tag = std::array<std::byte, kTagBytes>;

/// The keys of one connection. Packet numbers are nonces: each is sealed once.
class Session {
 public:
  virtual ~Session() = default;
  /// Seals a DATA packet in place: mode 2 encrypts behind the header. The last kTagBytes are the
  /// tag.
  virtual void seal(std::uint64_t number, std::span<std::byte> packet) = 0;
  /// The reverse. False: not made by the peer; `packet` is then worthless.
  virtual bool open(std::uint64_t number, std::span<std::byte> packet) = 0;
  /// The MAC of ACCEPT under the new keys.
  virtual Tag accept_mac() = 0;
};

/// Half of a key exchange.
class KeyShare {
 public:
  virtual ~KeyShare() = default;
  virtual std::span<const std::byte> bytes() const = 0;  ///< kShareBytes, for the peer
};

class Security {
 public:
  virtual ~Security() = default;
  virtual Mode mode() const = 0;
  virtual std::unique_ptr<KeyShare> make_share() = 0;
  /// MAC under the pre-shared key: HELLO, REFUSE, RESET.
  virtual Tag mac(std::span<const std::byte> bytes) = 0;
  /// Agrees on equal keys if `hello` and `accept` (up to their MACs, cookie 0) are. Null: bad
  /// share.
  virtual std::unique_ptr<Session> agree(KeyShare& ours, std::span<const std::byte> theirs,
                                         bool client, std::span<const std::byte> hello,
                                         std::span<const std::byte> accept) = 0;
};

/// Compares in a time that does not depend on where they differ.
inline bool same_tag(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.size() != b.size()) return false;
  std::byte difference{0};
  for (std::size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{0};
}

// --- the library with the cryptography -----------------------------------------------------------

constexpr std::uint32_t kSecurityAbi = 2;
constexpr const char* kSecurityLibrary = "libclan-crypto.so.0";
constexpr const char* kSecuritySymbol = "clan_security_library";

struct SecurityLibrary {
  std::uint32_t abi;
  /// Null: the cryptographic library has failed.
  Security* (*make)(Mode mode, const std::byte* key, std::size_t key_bytes);
};

/// Mode off: null. `library` is for tests; default: libclan-crypto.so.0 beside this library, or by
/// the dynamic linker.
Result<std::unique_ptr<Security>> load_security(Mode mode, const std::string& key_file,
                                                const char* library = nullptr);

}  // namespace clan::udp
