// What libclan-crypto.so offers: the one symbol that security_loader.cc looks for. Both are of one
// tree; `abi` keeps a library of another version from being used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "link/udp/wire/security.h"

namespace clan::udp {

constexpr std::uint32_t kSecurityAbi = 1;
constexpr const char* kSecurityLibrary = "libclan-crypto.so.0";
constexpr const char* kSecuritySymbol = "clan_security_library";

struct SecurityLibrary {
  std::uint32_t abi;
  /// Null: the cryptographic library has failed.
  Security* (*make)(Mode mode, const std::byte* key, std::size_t key_bytes);
};

}  // namespace clan::udp
