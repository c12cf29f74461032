// `clan gateway`: becomes clan-gateway, beside this program, under the interposer; and
// `clan gateway reload [PID]`.
#include <clan/face/gateway_face.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "commands.h"
#include "stat/pages/own_page.h"

namespace clan::tool {
namespace {

using gateway::GatewayPage;
constexpr int kUsage = 2;

/// The page of a gateway, by a descriptor that lives longer than the process.
class Watched {
 public:
  explicit Watched(pid_t pid) : process_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {
    (void)find_memfd(pid, gateway::kGatewayMemfdName, [&](const std::string& file) {
      page_fd_ = open(file.c_str(), O_RDONLY | O_CLOEXEC);
      return page_fd_ >= 0;
    });
  }
  ~Watched() {
    for (const int fd : {process_, page_fd_}) close(fd);
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  bool signal(int number) const {
    return syscall(SYS_pidfd_send_signal, process_, number, nullptr, 0) == 0;
  }
  bool has_ended() const {
    pollfd ended{process_, POLLIN, 0};
    return poll(&ended, 1, 0) == 1;
  }
  const GatewayPage& look() {
    (void)!pread(page_fd_, static_cast<void*>(page_.get()), sizeof *page_, 0);
    return *page_;
  }

 private:
  const int process_;
  int page_fd_ = -1;
  const std::unique_ptr<GatewayPage> page_ = std::make_unique<GatewayPage>();
};

std::vector<pid_t> serving(const std::vector<pid_t>& pids) {
  std::vector<pid_t> found;
  for (const auto& page : own_pages<GatewayPage>(pids, gateway::kGatewayMemfdName)) {
    if (value_in(page->draining) == 0) found.push_back(static_cast<pid_t>(page->pid));
  }
  return found;
}

/// Has the gateway replaced, and waits for what comes of it. The exit code.
int reload(const std::vector<std::string>& arguments) {
  std::vector<pid_t> pids;
  if (arguments.size() == 2) pids.push_back(pid_of(arguments[1].c_str()).value_or(0));
  pids = serving(pids);
  if (arguments.size() > 2 || pids.size() != 1) {
    fmt::print(stderr, "clan gateway reload: {}\n",
               pids.empty() ? "no gateway of this version serves (kill -USR2 PID reloads another)"
                            : "several gateways serve: clan gateway reload PID");
    return pids.empty() ? 1 : kUsage;
  }
  Watched gateway(pids[0]);
  const std::uint16_t failed_before = value_in(gateway.look().failed_starts);
  if (!gateway.signal(SIGUSR2)) {
    fmt::print(stderr, "clan gateway reload: {}: {}\n", pids[0], std::strerror(errno));
    return 1;
  }
  for (;;) {
    usleep(20'000);
    const bool ended = gateway.has_ended();  // before what it has left is read
    const GatewayPage& now = gateway.look();
    if (value_in(now.replaced) != 0) return 0;
    if (!ended && value_in(now.failed_starts) == failed_before) continue;
    const char* what =
        ended ? "it has ended meanwhile" : "the new program did not start, it serves on";
    fmt::print(stderr, "clan gateway reload: {}: {}\n", pids[0], what);
    return 1;
  }
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
