#include "link/udp/wire/security.h"

#include <dlfcn.h>

#include "clan/detail/log.h"
#include "clan/face/key_file.h"

namespace clan::udp {
namespace {

// The directory of the library or program with this code: an installed tree may be moved.
std::string own_directory() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&load_security), &info) == 0) return "";
  const std::string self(info.dli_fname == nullptr ? "" : info.dli_fname);
  return self.substr(0, self.rfind('/') + 1);
}

// Never unloaded: sessions are code of it, and it is needed again by the next context.
Result<const SecurityLibrary*> load(const char* library) {
  const std::string name(library != nullptr ? library : kSecurityLibrary);
  const std::string ours = own_directory();
  void* handle = nullptr;
  // Beside this library; from a program with the engine linked in; from a plug-in's own folder.
  for (const char* there : {"", "../lib/", "../"}) {
    if (library != nullptr || ours.empty() || handle != nullptr) break;
    handle = ::dlopen((ours + there + name).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (handle == nullptr) handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = ::dlerror();
    CLAN_WARN("libclan-crypto.so.0 was not loaded: %s", why == nullptr ? "no reason given" : why);
    return Error{
        ELIBACC,
        "integrity and encryption need libclan-crypto.so.0 and OpenSSL 3 (Debian: libssl3), "
        "which could not be loaded"};
  }
  const auto* found = static_cast<const SecurityLibrary*>(::dlsym(handle, kSecuritySymbol));
  if (found == nullptr || found->abi != kSecurityAbi) {
    return Error{ELIBBAD,
                 "the libclan-crypto.so.0 that was found belongs to another version of CLAN"};
  }
  return found;
}

}  // namespace

Result<std::unique_ptr<Security>> load_security(Mode mode, const std::string& key_file,
                                                const char* library) {
  if (mode == Mode::kOff) return std::unique_ptr<Security>();
  KeyFile file;
  if (auto s = file.read(key_file.c_str()); !s) return s.error();
  auto found = load(library);
  if (!found) return found.error();
  std::unique_ptr<Security> security((*found)->make(
      mode, reinterpret_cast<const std::byte*>(file.key().data()), file.key().size()));
  if (!security) return Error{EIO, "OpenSSL has failed"};
  return security;
}

}  // namespace clan::udp
