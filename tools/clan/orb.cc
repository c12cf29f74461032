// The transport for omniORB as its users meet it: where it is, whether this machine's omniORB can
// load it, and what makes programs take it.
#include <dlfcn.h>
#include <fmt/core.h>

#include <cstdlib>
#include <string>

#include "faces.h"

namespace clan::tool {
namespace {

constexpr const char* kPreload = "libclan-orb.so";
constexpr const char* kTransport = "libomniclanTP4.so";
constexpr const char* kOmniOrb = "libomniORB4.so.2";
constexpr const char* kWithout = "CORBA programs run without CLAN";
constexpr const char* kVersion = "_ZN7omniORB13versionStringEv";  // omniORB::versionString()

std::string why_no_orb() {
  constexpr const char* kTargets = "the targets clan_omniorb and clan_omniorb_preload";
  std::string why = why_not_there(in_lib(kPreload), kTargets);
  if (why.empty()) why = why_not_there(in_lib(kTransport), kTargets);
  return why.empty() ? why_not_preloaded(in_lib(kPreload), kTargets) : why;
}

Variables orb_variables() {
  // An option of the ORB's, by its rule for the environment. A user that has set it has decided.
  if (std::getenv("ORBclanEndPoint") != nullptr) return {};
  return {{"ORBclanEndPoint", "1"}};
}

void print_orb() {
  fmt::print("export LD_PRELOAD='{}'\"${{LD_PRELOAD:+:$LD_PRELOAD}}\"\n", in_lib(kPreload));
  fmt::print(
      "# Servers listen on giop:clan: beside their other endpoints:\nexport ORBclanEndPoint=1\n");
}

FaceState look_for_orb() {
  void* orb = dlopen(kOmniOrb, RTLD_LAZY | RTLD_LOCAL);
  if (orb == nullptr) {
    return {false, "there is no omniORB 4.2 here (Debian's package is libomniorb4-2)", kWithout};
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

}  // namespace

Face orb_face() {
  return {
      .name = "orb",
      .title = "omniORB",
      .without = kWithout,
      .why_not = why_no_orb,
      .print = print_orb,
      .look = look_for_orb,
      .carries = "calls of omniORB programs",
      .library = in_lib(kPreload),
      .variables = orb_variables,
  };
}

}  // namespace clan::tool
