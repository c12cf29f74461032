// The libfabric provider as its users meet it: where it is, whether libfabric can load it, and
// which variables make programs take it.
#include <dlfcn.h>
#include <fmt/core.h>
#include <rdma/fabric.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "faces.h"

namespace clan::tool {
namespace {

constexpr const char* kProviderDirectory = "libfabric";
constexpr const char* kProvider = "libclan-fi.so";
constexpr const char* kLibfabric = "libfabric.so.1";
constexpr const char* kProviderPathVariable = "FI_PROVIDER_PATH";
constexpr std::uint32_t kBuiltFor = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);

std::string version_text(std::uint32_t version) {
  return fmt::format("{}.{}", FI_MAJOR(version), FI_MINOR(version));
}

/// FI_PROVIDER_PATH with our directory before what is there.
std::string provider_path() {
  const std::string ours = in_lib(kProviderDirectory);
  std::string list = ours;
  const char* present = std::getenv(kProviderPathVariable);
  std::string_view rest = present != nullptr ? present : "";
  while (!rest.empty()) {
    const std::size_t end = rest.find(':');
    const std::string_view entry = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (!entry.empty() && entry != ours) list.append(":").append(entry);
  }
  return list;
}

/// Runs `ask` in a child and returns its answer, -1 if there was none within `seconds`. libfabric
/// probes all hardware when it starts, by libraries of the hardware's makers: none of that in this
/// process.
template <typename Ask>
int in_child(unsigned seconds, Ask ask) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(seconds);
    _exit(ask());
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

enum Answer { kNoLibrary = 2, kNotFound = 3, kFound = 4 };

/// What fi_getinfo() says about us, where FI_PROVIDER_PATH is `path` or, null, what it is.
int ask_libfabric(const char* path) {
  return in_child(20, [path]() -> int {
    if (path != nullptr) setenv(kProviderPathVariable, path, 1);
    unsetenv("FI_PROVIDER");
    void* library = dlopen(kLibfabric, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return kNoLibrary;
    const auto getinfo = reinterpret_cast<decltype(&fi_getinfo)>(dlsym(library, "fi_getinfo"));
    const auto dupinfo = reinterpret_cast<decltype(&fi_dupinfo)>(dlsym(library, "fi_dupinfo"));
    if (getinfo == nullptr || dupinfo == nullptr) return kNoLibrary;
    fi_info* hints = dupinfo(nullptr);
    if (hints == nullptr) return kNoLibrary;
    hints->fabric_attr->prov_name = strdup("clan");
    fi_info* found = nullptr;
    return getinfo(kBuiltFor, nullptr, nullptr, 0, hints, &found) == 0 && found != nullptr
               ? kFound
               : kNotFound;
  });
}

std::string shell_word(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string why_no_provider() {
  const std::string directory = in_lib(kProviderDirectory);
  const std::string provider = directory + "/" + kProvider;
  std::string why = why_not_there(provider, "the target clan_fi");
  if (!why.empty()) return why;
  if (directory.find(':') != std::string::npos) {
    return fmt::format(
        "{}: FI_PROVIDER_PATH cannot name a path with a colon in it; move CLAN elsewhere",
        directory);
  }
  void* library = dlopen(kLibfabric, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return fmt::format("there is no libfabric here ({}); Debian's package is libfabric1",
                       dlerror());
  }
  const auto version = reinterpret_cast<decltype(&fi_version)>(dlsym(library, "fi_version"));
  if (version == nullptr || FI_VERSION_LT(version(), kBuiltFor)) {
    return fmt::format("libfabric {} is too old: CLAN was built for {}",
                       version != nullptr ? version_text(version()) : "here",
                       version_text(kBuiltFor));
  }
  // Left open: its code may not be unmapped under threads of libfabric's other providers.
  if (dlopen(provider.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    return fmt::format("libfabric cannot load the provider: {}", dlerror());
  }
  return "";
}

Variables ofi_variables() {
  return {
      {kProviderPathVariable, provider_path()},
      {"FI_PROVIDER", "clan"},
      // Debian's openmpi-mca-params.conf has `mtl = ^ofi` and a list for btl. The transports of
      // Open MPI that know CLAN, and with them no other: messages by mtl ofi, windows by osc rdma
      // over btl ofi.
      {"OMPI_MCA_pml", "cm"},
      {"OMPI_MCA_mtl", "ofi"},
      {"OMPI_MCA_btl", "self,ofi"},
      // Accumulates of Open MPI 4.1 by the transport's atomic operations: btl ofi ends the program
      // when it is asked for another than a sum or an exchange, and osc rdma gives wrong results
      // for derived types. Under osc rdma's lock instead, which is faster, too.
      {"OMPI_MCA_osc_rdma_network_max_amo", "0"},
  };
}

void print_ofi() {
  const auto variables = ofi_variables();
  fmt::print("export {}={}\n", variables[0].first, shell_word(variables[0].second));
  fmt::print("# Programs take it if a setting says so; `clan run --with ofi` also sets:\n");
  for (std::size_t i = 1; i < variables.size(); ++i) {
    fmt::print("# export {}={}\n", variables[i].first, shell_word(variables[i].second));
  }
}

FaceState look_for_provider() {
  const std::string path = provider_path();
  if (ask_libfabric(path.c_str()) != kFound) {
    return {false, "libfabric does not find the provider in " + path,
            "programs of libfabric and MPI run without CLAN; FI_LOG_LEVEL=debug fi_info -p clan "
            "says why"};
  }
  return {true, fmt::format("it finds the provider in {}", path),
          ask_libfabric(nullptr) == kFound ? "programs of libfabric and MPI that ask for clan get "
                                             "it, here and under `clan run --with ofi`"
                                           : "`clan run --with ofi` takes it; other programs find "
                                             "it after `eval \"$(clan env ofi)\"`"};
}

}  // namespace

Face ofi_face() {
  return {
      .name = "ofi",
      .title = "libfabric",
      .without = "programs of libfabric and MPI run without CLAN",
      .why_not = why_no_provider,
      .print = print_ofi,
      .look = look_for_provider,
      .carries = "what the program does by libfabric, as MPI does",
      .variables = ofi_variables,
      .reads_log_alone = true,
  };
}

}  // namespace clan::tool
