// mca_btl_clan.so as its users meet it: where it is, whether this machine's Open MPI is the one
// that it was built for, and which variables make Open MPI load it.
#include <dlfcn.h>
#include <fmt/core.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "faces.h"

namespace clan::tool {
namespace {

constexpr const char* kComponentDirectory = "openmpi";
constexpr const char* kComponent = "mca_btl_clan.so";
constexpr const char* kOpal = "libopen-pal.so.40";
constexpr const char* kComponentPathVariable = "OMPI_MCA_mca_base_component_path";
/// What Open MPI reads by itself. It must stay on the path, or not even mpirun finds its parts.
constexpr std::string_view kDefaultPath = "SYSTEM_DEFAULT:USER_DEFAULT";

/// The component path with our directory before what is there.
std::string component_path() {
  const std::string ours = in_lib(kComponentDirectory);
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

std::string why_no_mpi() {
  const std::string component = in_lib(kComponentDirectory) + "/" + kComponent;
  std::string why = why_not_there(component, "the target clan_mpi");
  if (!why.empty()) return why;
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

Variables mpi_variables() {
  // It comes before vader and tcp for the ranks that it reaches; these keep the others.
  return {{kComponentPathVariable, component_path()}, {"OMPI_MCA_pml", "ob1"}};
}

void print_mpi() {
  for (const auto& [name, value] : mpi_variables()) fmt::print("export {}='{}'\n", name, value);
}

FaceState look_for_mpi() {
  return {true, "Open MPI " CLAN_OPEN_MPI_VERSION " can load mca_btl_clan.so",
          "`clan run --with mpi mpirun ...` takes messages and windows between ranks of this host "
          "over CLAN"};
}

}  // namespace

Face mpi_face() {
  return {
      .name = "mpi",
      .title = "Open MPI",
      .without = "MPI programs run without btl clan",
      .why_not = why_no_mpi,
      .print = print_mpi,
      .look = look_for_mpi,
      .carries = "messages and windows of Open MPI by its own byte transfer layer",
      .variables = mpi_variables,
  };
}

}  // namespace clan::tool
