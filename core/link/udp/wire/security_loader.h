// The library with the cryptography, which is loaded when a mode needs it, and given the key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "clan/result.h"
#include "link/udp/wire/security.h"

namespace clan::udp {

constexpr std::uint32_t kSecurityAbi = 2;
constexpr const char* kSecurityLibrary = "libclan-crypto.so.0";
constexpr const char* kSecuritySymbol = "clan_security_library";

struct SecurityLibrary {
  std::uint32_t abi;
  /// Null: the cryptographic library has failed.
  Security* (*make)(Mode mode, const std::byte* key, std::size_t key_bytes);
};

/// Mode off: null. `library` is for tests; by default libclan-crypto.so.0 beside this library, or
/// where the dynamic linker finds it.
Result<std::unique_ptr<Security>> load_security(Mode mode, const std::string& key_file,
                                                const char* library = nullptr);
/// The same with a key that has been read.
Result<std::unique_ptr<Security>> load_security_with(Mode mode, std::string_view key,
                                                     const char* library = nullptr);

}  // namespace clan::udp
