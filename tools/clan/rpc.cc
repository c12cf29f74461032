// libclanrpc as its users meet it: where it is and whether programs can load it.
#include <dlfcn.h>
#include <fmt/core.h>

#include <string>

#include "faces.h"

namespace clan::tool {
namespace {

std::string why_no_rpc(const std::string& library) {
  std::string why = why_not_preloaded(library, "the target clan_rpc");
  if (!why.empty()) return why;
  if (dlopen("libtirpc.so.3", RTLD_NOW | RTLD_LOCAL) == nullptr) {
    return fmt::format("there is no libtirpc here ({}); Debian's package is libtirpc3", dlerror());
  }
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    return fmt::format("the library cannot be loaded: {}", dlerror());
  }
  return "";
}

}  // namespace

Face rpc_face() {
  const std::string library = in_lib("libclanrpc.so");
  return {
      .name = "rpc",
      .title = "sunrpc",
      .without = "programs of libtirpc run without CLAN",
      .why_not = [=] { return why_no_rpc(library); },
      .print =
          [=] { fmt::print("export LD_PRELOAD='{}'\"${{LD_PRELOAD:+:$LD_PRELOAD}}\"\n", library); },
      .look =
          [=] {
            return FaceState{true, fmt::format("{} and libtirpc can be loaded", library),
                             "`clan run --with rpc` takes the remote calls between local programs "
                             "of libtirpc over CLAN"};
          },
      .carries = "remote calls by libtirpc",
      .library = library,
  };
}

}  // namespace clan::tool
