// clan-gateway: TCP connections from outside to programs under CLAN, and back. `clan gateway`
// starts it under the interposer, by which its connections to them move to shared memory as any.
#include <fmt/core.h>
#include <unistd.h>

#include <climits>
#include <string>
#include <utility>
#include <vector>

#include "gateway.h"

namespace {

constexpr int kUsage = 2;

std::string own_path() {
  char path[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
  return n > 0 ? std::string(path, static_cast<std::size_t>(n)) : "clan-gateway";
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): what nobody handles ends the program
int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h") {
    fmt::print(arguments.empty() ? stderr : stdout, "{}", clan::gateway::usage());
    return arguments.empty() ? kUsage : 0;
  }
  clan::gateway::Config config = clan::gateway::read_arguments(arguments);
  if (!config.error.empty()) {
    fmt::print(stderr, "clan gateway: {}; see clan gateway --help\n", config.error);
    return kUsage;
  }
  if (config.checks_only) return 0;
  arguments.insert(arguments.begin(), own_path());
  clan::gateway::Gateway gateway(std::move(config), std::move(arguments));
  const int code = gateway.run();
  _exit(code);  // threads that connect to services may be at it
}
