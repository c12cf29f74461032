#include "link/udp/security_loader.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "base/fd.h"
#include "clan/log.h"
#include "link/udp/security_library.h"

namespace clan::udp {
namespace {

// The directory of the library (or program) that this code is in: an installed tree works wherever
// it is moved.
std::string own_directory() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&read_key_file), &info) == 0) return "";
  const std::string self(info.dli_fname == nullptr ? "" : info.dli_fname);
  return self.substr(0, self.rfind('/') + 1);
}

// Never unloaded: sessions are code of it, and it is needed again by the next context.
Result<const SecurityLibrary*> load(const char* library) {
  const std::string name(library != nullptr ? library : kSecurityLibrary);
  const std::string ours = own_directory();
  void* handle = nullptr;
  if (library == nullptr && !ours.empty()) {
    handle = ::dlopen((ours + name).c_str(), RTLD_NOW | RTLD_LOCAL);
    // A program with the engine linked in.
    if (handle == nullptr)
      handle = ::dlopen((ours + "../lib/" + name).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (handle == nullptr) handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = ::dlerror();
    CLAN_WARN("libclan-crypto.so.0 was not loaded: %s", why == nullptr ? "no reason given" : why);
    return Error{ELIBACC,
                 "integrity and encryption need libclan-crypto.so.0 and OpenSSL 3 (Debian: "
                 "libssl3), which could "
                 "not be loaded"};
  }
  const auto* found = static_cast<const SecurityLibrary*>(::dlsym(handle, kSecuritySymbol));
  if (found == nullptr || found->abi != kSecurityAbi) {
    return Error{ELIBBAD,
                 "the libclan-crypto.so.0 that was found belongs to another version of CLAN"};
  }
  return found;
}

}  // namespace

Result<std::string> read_key_file(const std::string& path) {
  if (path.empty()) return Error{EINVAL, "no file with the pre-shared key was named"};
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) return errno_error("opening the file with the pre-shared key");
  struct stat status;
  if (::fstat(file.get(), &status) != 0)
    return errno_error("opening the file with the pre-shared key");
  if (!S_ISREG(status.st_mode))
    return Error{EINVAL, "the pre-shared key must be in a regular file"};
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    return Error{EACCES, "the file with the pre-shared key must belong to this user or to root"};
  }
  if ((status.st_mode & 077) != 0) {
    return Error{
        EACCES,
        "others may use the file with the pre-shared key: chmod 600 it, and make a new key"};
  }
  std::string key(kMostKeyBytes + 1, '\0');
  const ssize_t n = ::read(file.get(), key.data(), key.size());
  if (n < 0) return errno_error("reading the file with the pre-shared key");
  key.resize(static_cast<std::size_t>(n));
  if (key.size() > kMostKeyBytes)
    return Error{EINVAL, "the pre-shared key is longer than 4096 bytes"};
  while (!key.empty() && std::strchr(" \t\r\n", key.back()) != nullptr) key.pop_back();
  if (key.size() < kLeastKeyBytes) {
    return Error{
        EINVAL,
        "the pre-shared key is shorter than 32 bytes: `openssl rand -hex 32` makes a good one"};
  }
  return key;
}

Result<std::unique_ptr<Security>> load_security(Mode mode, const std::string& key_file,
                                                const char* library) {
  if (mode == Mode::kOff) return std::unique_ptr<Security>();
  auto key = read_key_file(key_file);
  if (!key) return key.error();
  auto found = load(library);
  if (!found) return found.error();
  std::unique_ptr<Security> security(
      (*found)->make(mode, reinterpret_cast<const std::byte*>(key->data()), key->size()));
  ::explicit_bzero(key->data(), key->size());
  if (!security) return Error{EIO, "OpenSSL has failed"};
  return security;
}

}  // namespace clan::udp
