#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "commands.h"

namespace clan::tool {
namespace {

constexpr const char* kRunner = "clan-bench";
constexpr const char* kApps = "apps/apps.py";
constexpr const char* kOfi = "ofi/ofi.py";
constexpr const char* kOrbScript = "orb/orb.py";
constexpr const char* kRpc = "rpc/rpc.py";
constexpr const char* kNet = "net/net.py";
constexpr const char* kMpi = "mpi/mpi.py";

/// The directory this program is in, empty if the kernel does not say.
std::filesystem::path own_directory() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::path() : self.parent_path();
}

/// Where a part of the benchmarks is: beside this program in a build tree, in ../lib/clan of an
/// installed one, where a build tree has its scripts, too. Empty if it is in neither place.
std::string find_part(const char* name, int mode) {
  const auto here = own_directory();
  if (here.empty()) return "";
  for (const auto& candidate : {here / name, here.parent_path() / "lib" / "clan" / name}) {
    if (access(candidate.c_str(), mode) == 0) return candidate;
  }
  return "";
}

/// Becomes `words`; 126 if that does not work.
int become(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  fmt::print(stderr, "clan bench: exec {}: {}\n", words[0], std::strerror(errno));
  return 126;
}

/// `clan bench apps …`, `clan bench ofi …`, `clan bench orb …`: measured by a script, which
/// `switches` may have left out.
int exec_script(const char* name, const char* switches, const std::vector<std::string>& arguments) {
  const std::string script = find_part(name, R_OK);
  if (script.empty()) {
    fmt::print(stderr, "clan bench: {} is not in ../lib/clan: built with {} off.\n", name,
               switches);
    return 127;
  }
  // -B: an installed tree stays as it was installed.
  std::vector<std::string> words{"python3", "-B", script, "--clan", own_directory() / "clan"};
  words.insert(words.end(), arguments.begin() + 1, arguments.end());
  return become(std::move(words));
}

}  // namespace

int exec_bench(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && arguments[0] == "apps") {
    return exec_script(kApps, "CLAN_PRELOAD or CLAN_BENCH", arguments);
  }
  if (!arguments.empty() && arguments[0] == "ofi") {
    return exec_script(kOfi, "CLAN_LIBFABRIC or CLAN_BENCH", arguments);
  }
  if (!arguments.empty() && arguments[0] == "orb") {
    return exec_script(kOrbScript, "CLAN_OMNIORB or CLAN_BENCH", arguments);
  }
  if (!arguments.empty() && arguments[0] == "rpc") {
    return exec_script(kRpc, "CLAN_SUNRPC or CLAN_BENCH", arguments);
  }
  if (!arguments.empty() && arguments[0] == "net") {
    return exec_script(kNet, "CLAN_BENCH", arguments);
  }
  if (!arguments.empty() && arguments[0] == "mpi") {
    return exec_script(kMpi, "CLAN_MPI or CLAN_BENCH", arguments);
  }
  const std::string runner = find_part(kRunner, X_OK);
  if (runner.empty()) {
    fmt::print(
        stderr,
        "clan bench: {} is neither beside this program nor in ../lib/clan: it was not built.\n",
        kRunner);
    return 127;
  }
  const std::string first = arguments.empty() ? "help" : arguments[0];
  const bool help = first == "help" || first == "-h" || first == "--help";
  const bool apps = !find_part(kApps, R_OK).empty(), ofi = !find_part(kOfi, R_OK).empty();
  const bool orb = !find_part(kOrbScript, R_OK).empty();
  const bool others = !find_part(kRpc, R_OK).empty() || !find_part(kMpi, R_OK).empty() ||
                      !find_part(kNet, R_OK).empty();
  if (help && (apps || ofi || orb || others)) {  // which the runner does not know
    if (apps)
      fmt::print(
          "clan bench apps [--help]   real programs, over TCP and under `clan run` in turns\n");
    if (ofi)
      fmt::print(
          "clan bench ofi [--help]    the libfabric provider beside shm and tcp, and Open MPI\n");
    if (orb) fmt::print("clan bench orb [--help]    omniORB calls beside giop:tcp and giop:unix\n");
    if (!find_part(kRpc, R_OK).empty())
      fmt::print(
          "clan bench rpc [--help]    remote calls of libtirpc over CLAN beside its own "
          "transports\n");
    if (!find_part(kMpi, R_OK).empty())
      fmt::print(
          "clan bench mpi [--help]    Open MPI over btl clan beside vader, tcp and mtl ofi\n");
    if (!find_part(kNet, R_OK).empty())
      fmt::print(
          "clan bench net [--help]    the UDP link beside TCP and UDP, between two network "
          "namespaces\n");
    fmt::print("clan bench ...             the engine beside the kernel:\n\n");
    std::fflush(stdout);
  }
  std::vector<std::string> words{runner};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return become(std::move(words));
}

}  // namespace clan::tool
