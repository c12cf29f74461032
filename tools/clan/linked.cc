// Faces that are libraries of their own, which programs are linked with: where they are, for
// `clan env` and `clan doctor`.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"

namespace clan::tool {
namespace {

struct Linked {
  const char* face;      // of `clan env`
  const char* title;     // of `clan doctor`
  const char* name;      // as the linker has it
  const char* header;    // by which an installed tree is known
  const char* headers;   // where those are written, for a build tree
  const char* variable;  // what the names of its variables begin with
  const char* package;   // of pkg-config
  const char* programs;
};

const std::vector<Linked> kFaces{
#ifdef CLAN_VIA
    {"via", "VIA", "vipl", "vipl.h", CLAN_VIA_HEADERS, "VIPL", "vipl",
     "programs of the Virtual Interface Architecture"},
#endif
#ifdef CLAN_VMMC
    {"vmmc", "VMMC", "clanvmmc", "vmmc.h", CLAN_VMMC_HEADERS, "VMMC", "clan-vmmc",
     "programs of virtual memory-mapped communication"},
#endif
#ifdef CLAN_UNET
    {"unet", "U-Net", "clanunet", "unet.h", CLAN_UNET_HEADERS, "UNET", "clan-unet",
     "programs of U-Net"},
#endif
};

std::filesystem::path prefix() {
  char program[4096];
  const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
  if (n <= 0) return {};
  program[n] = 0;
  return std::filesystem::path(program).parent_path().parent_path();
}

// Installed beside bin/; in a build tree the headers are where they were written.
std::string headers(const Linked& face) {
  const auto installed = prefix() / "include";
  return access((installed / face.header).c_str(), R_OK) == 0 ? installed.string() : face.headers;
}

std::string why_not(const Linked& face) {
  const auto library = prefix() / "lib" / fmt::format("lib{}.so", face.name);
  if (access(library.c_str(), R_OK) == 0) return "";
  return fmt::format("{}: {}; build the target clan_{}", library.string(), std::strerror(errno),
                     face.face);
}

int print_environment_of(const Linked& face) {
  const std::string why = why_not(face);
  if (!why.empty()) {
    fmt::print(stderr, "clan env: {}\n", why);
    return 1;
  }
  const std::string lib = (prefix() / "lib").string();
  fmt::print("export {}_CFLAGS='-I{}'\n", face.variable, headers(face));
  fmt::print("export {}_LIBS='-L{} -Wl,-rpath,{} -l{}'\n", face.variable, lib, lib, face.name);
  return 0;
}

ProviderState look_for(const Linked& face) {
  const std::string why = why_not(face);
  if (!why.empty()) return {false, why, fmt::format("{} cannot be linked", face.programs)};
  return {true, fmt::format("lib{}.so is in {}", face.name, (prefix() / "lib").string()),
          fmt::format("{} are linked with `pkg-config --libs {}`, or ${}_LIBS of `clan env {}`",
                      face.programs, face.package, face.variable, face.face)};
}

}  // namespace

std::vector<std::string> linked_faces() {
  std::vector<std::string> names;
  for (const Linked& face : kFaces) names.push_back(face.face);
  return names;
}

std::optional<int> print_linked_environment(const std::string& name) {
  for (const Linked& face : kFaces) {
    if (name == face.face) return print_environment_of(face);
  }
  return std::nullopt;
}

std::vector<std::pair<const char*, ProviderState>> look_for_linked() {
  std::vector<std::pair<const char*, ProviderState>> states;
  for (const Linked& face : kFaces) states.emplace_back(face.title, look_for(face));
  return states;
}

}  // namespace clan::tool
