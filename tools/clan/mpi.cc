// mca_btl_clan.so as its users meet it: where it is, whether this machine's Open MPI is the one
// that it was built for, and which variables make Open MPI load it (`clan run --with mpi`, `clan
// env mpi`, a line of `clan doctor`).
#include <dlfcn.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "commands.h"

namespace clan::tool {
namespace {

constexpr const char* kComponent = "mca_btl_clan.so";
constexpr const char* kOpal = "libopen-pal.so.40";
constexpr const char* kComponentPathVariable = "OMPI_MCA_mca_base_component_path";
/// What Open MPI reads by itself. It must stay on the path, or not even mpirun finds its parts.
constexpr std::string_view kDefaultPath = "SYSTEM_DEFAULT:USER_DEFAULT";

/// ../lib/openmpi from this program, in a build tree and in an installed one.
std::string component_directory() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string() : (self.parent_path().parent_path() / "lib" / "openmpi").string();
}

/// The component path with our directory before what is there.
std::string component_path() {
  const std::string ours = component_directory();
  const char* present = std::getenv(kComponentPathVariable);
  const std::string_view rest =
      present != nullptr && *present != '\0' ? std::string_view(present) : kDefaultPath;
  if (rest == ours || rest.starts_with(ours + ":")) return std::string(rest);
  return ours + ":" + std::string(rest);
}

/// The version of this machine's Open MPI, "" if there is none. Nothing of it is started: a string
/// is read.
std::string open_mpi_version() {
  void* library = dlopen(kOpal, RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return "";
  const auto* version = static_cast<const char*>(dlsym(library, "opal_version_string"));
  return version != nullptr ? version : "of no known version";
}

}  // namespace

std::string why_no_mpi() {
  const std::string component = component_directory() + "/" + kComponent;
  if (access(component.c_str(), R_OK) != 0) {
    return fmt::format(
        "{}: {}; build the target clan_mpi, or install CLAN with its lib/ beside bin/", component,
        std::strerror(errno));
  }
  if (component.find_first_of(":,") != std::string::npos) {
    return fmt::format(
        "{}: Open MPI's component path cannot name a directory with a colon in it; move CLAN "
        "elsewhere",
        component);
  }
  const std::string version = open_mpi_version();
  if (version.empty()) return "there is no Open MPI 4.1 here (Debian's package is libopenmpi3)";
  if (version != CLAN_OPEN_MPI_VERSION) {
    return fmt::format(
        "Open MPI is {}, and the component was built for {}; rebuild CLAN with this one's headers",
        version, CLAN_OPEN_MPI_VERSION);
  }
  return "";
}

std::vector<std::pair<std::string, std::string>> mpi_variables() {
  // It comes before vader and tcp for the ranks that it reaches; these keep the others.
  return {{kComponentPathVariable, component_path()}, {"OMPI_MCA_pml", "ob1"}};
}

int print_mpi_environment() {
  const std::string why = why_no_mpi();
  if (!why.empty()) {
    fmt::print(stderr, "clan env: {}\n", why);
    return 1;
  }
  for (const auto& [name, value] : mpi_variables()) fmt::print("export {}='{}'\n", name, value);
  return 0;
}

ProviderState look_for_mpi() {
  const std::string why = why_no_mpi();
  if (!why.empty()) return {false, why, "MPI programs run without btl clan"};
  return {true, fmt::format("{} can load mca_btl_clan.so", "Open MPI " CLAN_OPEN_MPI_VERSION),
          "`clan run --with mpi mpirun ...` takes messages and windows between ranks of this host "
          "over CLAN"};
}

}  // namespace clan::tool
