// The transport for omniORB as its users meet it: where it is, whether this machine's omniORB can
// load it, and what makes programs take it (`clan run --with orb`, `clan env orb`, a line of `clan
// doctor`).
#include <dlfcn.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "commands.h"

namespace clan::tool {
namespace {

constexpr const char* kPreload = "libclan-orb.so";
constexpr const char* kTransport = "libomniclanTP4.so";
constexpr const char* kOmniOrb = "libomniORB4.so.2";
constexpr const char* kVersion = "_ZN7omniORB13versionStringEv";  // omniORB::versionString()

/// ../lib from this program, in a build tree and in an installed one.
std::string library(const char* name) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string(name) : (self.parent_path().parent_path() / "lib" / name).string();
}

}  // namespace

std::string orb_library() { return library(kPreload); }

std::string why_no_orb() {
  for (const char* name : {kPreload, kTransport}) {
    if (access(library(name).c_str(), R_OK) == 0) continue;
    return fmt::format(
        "{}: {}; build the targets clan_omniorb and clan_omniorb_preload, or install CLAN with its "
        "lib/ "
        "beside bin/",
        library(name), std::strerror(errno));
  }
  if (library(kPreload).find_first_of(": ") != std::string::npos) {
    return fmt::format(
        "{}: LD_PRELOAD cannot name a path with a space or a colon in it; move CLAN elsewhere",
        library(kPreload));
  }
  return "";
}

std::vector<std::pair<std::string, std::string>> orb_variables() {
  // An option of the ORB's, by its rule for the environment. A user that has set it has decided.
  if (std::getenv("ORBclanEndPoint") != nullptr) return {};
  return {{"ORBclanEndPoint", "1"}};
}

int print_orb_environment() {
  const std::string why = why_no_orb();
  if (!why.empty()) {
    fmt::print(stderr, "clan env: {}\n", why);
    return 1;
  }
  fmt::print("export LD_PRELOAD='{}'\"${{LD_PRELOAD:+:$LD_PRELOAD}}\"\n", orb_library());
  fmt::print(
      "# Servers listen on giop:clan: beside their other endpoints:\nexport ORBclanEndPoint=1\n");
  return 0;
}

OrbState look_for_orb() {
  const std::string why = why_no_orb();
  if (!why.empty()) return {false, why, "CORBA programs run without CLAN"};
  void* orb = dlopen(kOmniOrb, RTLD_LAZY | RTLD_LOCAL);
  if (orb == nullptr) {
    return {false, "there is no omniORB 4.2 here (Debian's package is libomniorb4-2)",
            "CORBA programs run without CLAN"};
  }
  using Version = const char* (*)();
  const auto version = reinterpret_cast<Version>(dlsym(orb, kVersion));
  const std::string here = version != nullptr ? version() : "of no known version";
  if (here != CLAN_OMNIORB_VERSION) {
    return {false,
            fmt::format("omniORB is {}, and the transport was built for {}", here,
                        CLAN_OMNIORB_VERSION),
            "CORBA programs run without CLAN; rebuild CLAN with this omniORB's headers"};
  }
  return {true, fmt::format("omniORB {}, and the transport for it", here),
          "CORBA programs under `clan run --with orb` call each other over CLAN"};
}

}  // namespace clan::tool
