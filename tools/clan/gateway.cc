// `clan gateway`: becomes clan-gateway, beside this program, under the interposer; and
// `clan gateway reload [PID]`.
#include <clan/gateway_face.h>
#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "commands.h"
#include "stat/own_page.h"

namespace clan::tool {
namespace {

using gateway::GatewayPage;
constexpr int kUsage = 2;

struct Seen {
  pid_t pid = 0;
  std::uint64_t reloads = 0, failed = 0;
  bool draining = false;
};

std::vector<Seen> gateways(const std::vector<pid_t>& pids) {
  std::vector<Seen> found;
  for_own_pages<GatewayPage>(pids, gateway::kGatewayMemfdName, [&](const GatewayPage& page) {
    found.push_back({static_cast<pid_t>(page.pid), value_in(page.reloads),
                     value_in(page.failed_reloads), value_in(page.draining) != 0});
  });
  return found;
}

/// Has the gateway replaced, and waits for what comes of it. The exit code.
int reload(const std::vector<std::string>& arguments) {
  std::vector<pid_t> pids;
  if (arguments.size() == 2) pids.push_back(pid_of(arguments[1].c_str()).value_or(0));
  auto serving = gateways(pids);
  std::erase_if(serving, [](const Seen& seen) { return seen.draining; });
  if (arguments.size() > 2 || serving.size() != 1) {
    fmt::print(stderr, "clan gateway reload: {} gateways are seen{}\n", serving.size(),
               serving.size() > 1 ? ": which one? clan gateway reload PID" : "");
    return serving.size() > 1 ? kUsage : 1;
  }
  const Seen before = serving[0];
  if (kill(before.pid, SIGUSR2) != 0) {
    fmt::print(stderr, "clan gateway reload: {}: {}\n", before.pid, std::strerror(errno));
    return 1;
  }
  for (;;) {
    usleep(20'000);
    const auto now = gateways({before.pid});
    // It has drained and ended where it is gone.
    if (now.empty() || now[0].reloads > before.reloads) return 0;
    if (now[0].failed > before.failed) break;
  }
  fmt::print(stderr, "clan gateway reload: the new program did not start; {} serves on\n",
             before.pid);
  return 1;
}

}  // namespace

int gateway(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && arguments[0] == "reload") return reload(arguments);
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  std::vector<std::string> command{self.parent_path() / "clan-gateway"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return exec_under_clan({}, command);
}

}  // namespace clan::tool
