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

/// What a script measures, which may have been left out.
struct Script {
  const char* name;
  const char* file;
  const char* switches;  ///< with which it is built
  const char* help;
};
constexpr Script kScripts[] = {
    {"apps", "apps/apps.py", "CLAN_PRELOAD or CLAN_BENCH",
     "real programs, over TCP and under `clan run` in turns"},
    {"crowd", "crowd/crowd.py", "CLAN_PRELOAD or CLAN_BENCH",
     "pairs of processes on few cores, alone and beside computations"},
    {"ofi", "ofi/ofi.py", "CLAN_LIBFABRIC or CLAN_BENCH",
     "the libfabric provider beside shm and tcp, and Open MPI"},
    {"orb", "orb/orb.py", "CLAN_OMNIORB or CLAN_BENCH",
     "omniORB calls beside giop:tcp and giop:unix"},
    {"rpc", "rpc/rpc.py", "CLAN_SUNRPC or CLAN_BENCH",
     "remote calls of libtirpc over CLAN beside its own transports"},
    {"mpi", "mpi/mpi.py", "CLAN_MPI or CLAN_BENCH",
     "Open MPI over btl clan beside vader, tcp and mtl ofi"},
    {"gateway", "gateway/gateway.py", "CLAN_PRELOAD or CLAN_BENCH",
     "the gateway beside haproxy, nginx and socat, between two network namespaces"},
    {"net", "net/net.py", "CLAN_BENCH",
     "the UDP link beside TCP and UDP, between two network namespaces"},
    {"ip", "ip/ip.py", "CLAN_BENCH", "`clan ip` beside a bare forwarder, veth, vde2 and tinc"},
    {"paper", "paper/paper.py", "CLAN_BENCH",
     "every figure and table of the five papers, and whether its shape holds"},
};

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
  fmt::print(stderr, "clan: exec {}: {}\n", words[0], std::strerror(errno));
  return 126;
}

/// `clan bench apps …` and so on.
int exec_script(const Script& measures, const std::vector<std::string>& arguments) {
  const std::string script = find_part(measures.file, R_OK);
  if (script.empty()) {
    fmt::print(stderr, "clan bench: {} is not in ../lib/clan: built with {} off.\n", measures.file,
               measures.switches);
    return 127;
  }
  // -B: an installed tree stays as it was installed.
  std::vector<std::string> words{"python3", "-B", script, "--clan", own_directory() / "clan"};
  words.insert(words.end(), arguments.begin() + 1, arguments.end());
  return become(std::move(words));
}

/// What the runner does not know of.
void print_scripts() {
  bool any = false;
  for (const Script& script : kScripts) {
    if (find_part(script.file, R_OK).empty()) continue;
    fmt::print("clan bench {:7} [--help]  {}\n", script.name, script.help);
    any = true;
  }
  if (any) fmt::print("clan bench ...               the engine beside the kernel:\n\n");
  std::fflush(stdout);
}

}  // namespace

int exec_bench(const std::vector<std::string>& arguments) {
  const std::string first = arguments.empty() ? "help" : arguments[0];
  for (const Script& script : kScripts) {
    if (first == script.name) return exec_script(script, arguments);
  }
  const std::string runner = find_part(kRunner, X_OK);
  if (runner.empty()) {
    fmt::print(
        stderr,
        "clan bench: {} is neither beside this program nor in ../lib/clan: it was not built.\n",
        kRunner);
    return 127;
  }
  if (first == "help" || first == "-h" || first == "--help") print_scripts();
  std::vector<std::string> words{runner};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return become(std::move(words));
}

int exec_part(const char* name, const std::vector<std::string>& arguments) {
  const std::string program = find_part(name, X_OK);
  if (program.empty()) {
    fmt::print(stderr, "clan: {} is not in ../lib/clan: it was not built.\n", name);
    return 127;
  }
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return become(std::move(words));
}

}  // namespace clan::tool
