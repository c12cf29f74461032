#include "faces.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <system_error>

namespace clan::tool {

const std::vector<Face>& faces() {
  static const std::vector<Face> all = [] {
    std::vector<Face> found = {
#ifdef CLAN_LIBFABRIC
        ofi_face(),
#endif
#ifdef CLAN_OMNIORB
        orb_face(),
#endif
#ifdef CLAN_SUNRPC
        rpc_face(),
#endif
#ifdef CLAN_MPI
        mpi_face(),
#endif
    };
    std::ranges::move(linked_faces(), std::back_inserter(found));
    return found;
  }();
  return all;
}

const Face* find_face(std::string_view name) {
  const auto found = std::ranges::find(faces(), name, &Face::name);
  return found != faces().end() ? &*found : nullptr;
}

FaceState state_of(const Face& face) {
  const std::string why = face.why_not();
  return why.empty() ? face.look() : FaceState{false, why, face.without};
}

int print_environment(const Face& face) {
  const std::string why = face.why_not();
  if (why.empty()) {
    face.print();
  } else {
    fmt::print(stderr, "clan env: {}\n", why);
  }
  return why.empty() ? 0 : 1;
}

std::string in_lib(const std::string& name) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? name : (self.parent_path().parent_path() / "lib" / name).string();
}

std::string why_not_there(const std::string& file, const char* targets) {
  if (access(file.c_str(), R_OK) == 0) return "";
  return fmt::format("{}: {}; build {}, or install CLAN with its lib/ beside bin/", file,
                     std::strerror(errno), targets);
}

std::string why_not_preloaded(const std::string& library, const char* targets) {
  std::string why = why_not_there(library, targets);
  if (why.empty() && library.find_first_of(": ") != std::string::npos) {
    why = fmt::format(
        "{}: LD_PRELOAD cannot name a path with a space or a colon in it; move CLAN elsewhere",
        library);
  }
  return why;
}

}  // namespace clan::tool
