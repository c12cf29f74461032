// The pre-shared key's file, and the library with the cryptography, which is loaded when a mode
// needs it.
#pragma once

#include <memory>
#include <string>

#include "clan/result.h"
#include "link/udp/security.h"

namespace clan::udp {

constexpr std::size_t kLeastKeyBytes = 32;
constexpr std::size_t kMostKeyBytes = 4096;

/// The key: all of the file but white space at its end. EACCES: others may read or write it, or it
/// belongs to somebody else; EINVAL: too short, too long, or no regular file.
Result<std::string> read_key_file(const std::string& path);

/// Mode off: null. `library` is for tests; by default libclan-crypto.so.0 beside this library, or
/// where the dynamic linker finds it.
Result<std::unique_ptr<Security>> load_security(Mode mode, const std::string& key_file,
                                                const char* library = nullptr);

}  // namespace clan::udp
