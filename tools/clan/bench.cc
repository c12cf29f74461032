#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "commands.h"

namespace clan::tool {
namespace {

constexpr const char* kRunner = "clan-bench";

/// Where the runner is: beside this program in a build tree, in ../lib/clan of an installed one.
/// Empty if it is in neither place.
std::string find_runner() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return "";
  const auto here = self.parent_path();
  for (const auto& candidate : {here / kRunner, here.parent_path() / "lib" / "clan" / kRunner}) {
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

}  // namespace

int exec_bench(const std::vector<std::string>& arguments) {
  const std::string runner = find_runner();
  if (runner.empty()) {
    fmt::print(
        stderr,
        "clan bench: {} is neither beside this program nor in ../lib/clan: it was not built.\n",
        kRunner);
    return 127;
  }
  std::vector<char*> argv{const_cast<char*>(runner.c_str())};
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(runner.c_str(), argv.data());
  fmt::print(stderr, "clan bench: exec {}: {}\n", runner, std::strerror(errno));
  return 126;
}

}  // namespace clan::tool
