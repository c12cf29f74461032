// libclanrpc as its users meet it: where it is and whether programs can load it (`clan run --with
// rpc`, `clan env rpc`, a line of `clan doctor`).
#include <dlfcn.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

#include "commands.h"

namespace clan::tool {

std::string rpc_library() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string("libclanrpc.so")
               : (self.parent_path().parent_path() / "lib" / "libclanrpc.so").string();
}

std::string why_no_rpc() {
  const std::string library = rpc_library();
  if (access(library.c_str(), R_OK) != 0) {
    return fmt::format(
        "{}: {}; build the target clan_rpc, or install CLAN with its lib/ beside bin/", library,
        std::strerror(errno));
  }
  if (library.find_first_of(": ") != std::string::npos) {
    return fmt::format(
        "{}: LD_PRELOAD cannot name a path with a space or a colon in it; move CLAN elsewhere",
        library);
  }
  if (dlopen("libtirpc.so.3", RTLD_NOW | RTLD_LOCAL) == nullptr) {
    return fmt::format("there is no libtirpc here ({}); Debian's package is libtirpc3", dlerror());
  }
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    return fmt::format("the library cannot be loaded: {}", dlerror());
  }
  return "";
}

int print_rpc_environment() {
  const std::string why = why_no_rpc();
  if (!why.empty()) {
    fmt::print(stderr, "clan env: {}\n", why);
    return 1;
  }
  fmt::print("export LD_PRELOAD='{}'\"${{LD_PRELOAD:+:$LD_PRELOAD}}\"\n", rpc_library());
  return 0;
}

ProviderState look_for_rpc() {
  const std::string why = why_no_rpc();
  if (!why.empty()) return {false, why, "programs of libtirpc run without CLAN"};
  return {
      true, fmt::format("{} and libtirpc can be loaded", rpc_library()),
      "`clan run --with rpc` takes the remote calls between local programs of libtirpc over CLAN"};
}

}  // namespace clan::tool
