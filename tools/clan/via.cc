// The Virtual Interface Architecture: where libvipl is, for `clan env via` and `clan doctor`.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "commands.h"

namespace clan::tool {
namespace {

std::filesystem::path prefix() {
  char program[4096];
  const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
  if (n <= 0) return {};
  program[n] = 0;
  return std::filesystem::path(program).parent_path().parent_path();
}

// Installed beside bin/; in a build tree the headers are where they were written.
std::string headers() {
  const auto installed = prefix() / "include";
  return access((installed / "vipl.h").c_str(), R_OK) == 0 ? installed.string() : CLAN_VIA_HEADERS;
}

std::string why_no_via() {
  const auto library = prefix() / "lib" / "libvipl.so";
  if (access(library.c_str(), R_OK) != 0)
    return fmt::format("{}: {}; build the target clan_via", library.string(), std::strerror(errno));
  return "";
}

}  // namespace

int print_via_environment() {
  const std::string why = why_no_via();
  if (!why.empty()) {
    fmt::print(stderr, "clan env: {}\n", why);
    return 1;
  }
  const std::string lib = (prefix() / "lib").string();
  fmt::print("export VIPL_CFLAGS='-I{}'\n", headers());
  fmt::print("export VIPL_LIBS='-L{} -Wl,-rpath,{} -lvipl'\n", lib, lib);
  return 0;
}

ProviderState look_for_via() {
  const std::string why = why_no_via();
  if (!why.empty()) return {false, why, "programs of VIPL cannot be linked"};
  return {
      true, fmt::format("libvipl.so is in {}", (prefix() / "lib").string()),
      "programs of the Virtual Interface Architecture are linked with `pkg-config --libs vipl`, "
      "or $VIPL_LIBS of `clan env via`"};
}

}  // namespace clan::tool
