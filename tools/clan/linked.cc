// Faces that are libraries of their own, which programs are linked with: where they are.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "faces.h"

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

void print(const Linked& face) {
  const std::string lib = (prefix() / "lib").string();
  fmt::print("export {}_CFLAGS='-I{}'\n", face.variable, headers(face));
  fmt::print("export {}_LIBS='-L{} -Wl,-rpath,{} -l{}'\n", face.variable, lib, lib, face.name);
}

FaceState look_for(const Linked& face) {
  return {true, fmt::format("lib{}.so is in {}", face.name, (prefix() / "lib").string()),
          fmt::format("{} are linked with `pkg-config --libs {}`, or ${}_LIBS of `clan env {}`",
                      face.programs, face.package, face.variable, face.face)};
}

}  // namespace

std::vector<Face> linked_faces() {
  std::vector<Face> found;
  for (const Linked& face : kFaces) {
    found.push_back({
        .name = face.face,
        .title = face.title,
        .without = fmt::format("{} cannot be linked", face.programs),
        .why_not = [&face] { return why_not(face); },
        .print = [&face] { print(face); },
        .look = [&face] { return look_for(face); },
    });
  }
  return found;
}

}  // namespace clan::tool
