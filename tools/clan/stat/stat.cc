// `clan stat`: the connections that go over CLAN, of every process that the caller may read, as
// `ss` lists sockets.
//
// A connection is a memfd named clan-pipe that the processes at both ends hold. Its first page has
// all counters (clan/face/pipe.h), its Face words say which TCP connection it stands for
// (clan/face/socket_face.h). Which process has which end is the kernel's word: /proc/<pid>/net/tcp
// tells the inode of the TCP socket between two addresses, /proc/<pid>/fd which processes hold that
// socket.
//
// Nothing is written, no process is stopped, and none of their locks is taken.
#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>
#include <utility>

#include "../commands.h"
#include "look.h"
#include "rates.h"
#include "write.h"

namespace clan::tool {
namespace {

/// What could not be shown; on stderr, once.
void mention(const Look& seen) {
  if (seen.refused > 0 && seen.unseen > 0) {
    // The root of a container may not, as most are set up.
    const char* remedy = geteuid() == 0 ? "a user with CAP_SYS_PTRACE" : "root";
    fmt::print(
        stderr,
        "clan stat: {} {} could not be looked into, and {} local {} between such; {} sees {}\n",
        seen.refused, seen.refused == 1 ? "process" : "processes", seen.unseen,
        seen.unseen == 1 ? "connection is" : "connections are", remedy,
        seen.unseen == 1 ? "it" : "them");
  }
  if (seen.other_versions > 0) {
    fmt::print(stderr, "clan stat: {} {} of another version of CLAN\n", seen.other_versions,
               seen.other_versions == 1 ? "connection is" : "connections are");
  }
  for (const pid_t pid : seen.absent)
    fmt::print(stderr, "clan stat: there is no process {}\n", pid);
}

Pages<gateway::GatewayPage> gateway_pages(const std::vector<pid_t>& pids) {
  return own_pages<gateway::GatewayPage>(pids, gateway::kGatewayMemfdName);
}

Report report_of(const Look& seen, const StatOptions& options, Rates& rates, double elapsed_s) {
  Report report;
  report.connections = seen.connections;
  for (const Connection& connection : seen.connections) {
    const bool rated = connection.in_pipe && options.watch;
    report.rates.push_back(rated ? rates.next(connection, elapsed_s) : std::nullopt);
  }
  rates.turn();
  report.hosts = read_path_pages(options.pids);
  report.remote_calls = own_pages<RpcPage>(options.pids, kRpcMemfdName);
  report.mpi_pairs = read_mpi_pages(options.pids);
  report.vis = read_via_pages(options.pids);
  report.vmmc = own_pages<vmmc::VmmcPage>(options.pids, vmmc::kVmmcMemfdName);
  report.endpoints = read_unet_pages(options.pids);
  report.gateways = gateway_pages(options.pids);
  report.devices = read_ip_pages(options.pids);
  return report;
}

}  // namespace

int print_connections(const StatOptions& options) {
  const bool clear = options.watch && !options.json && isatty(STDOUT_FILENO) != 0;
  Rates rates;
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> before;
  for (bool first = true;; first = false) {
    const Look seen = look(options);
    const auto now = Clock::now();
    const double elapsed_s = before ? std::chrono::duration<double>(now - *before).count() : 0;
    before = now;
    if (options.prometheus) {
      print_prometheus(seen, read_path_pages(options.pids), gateway_pages(options.pids),
                       read_ip_pages(options.pids));
      const bool written = std::fflush(stdout) == 0;
      mention(seen);
      return written && seen.absent.empty() ? 0 : 1;
    }
    const Report report = report_of(seen, options, rates, elapsed_s);
    if (clear) fmt::print("\033[H\033[2J");
    if (!first && !options.json && !clear) fmt::print("\n");
    options.json ? print_json(report, options.watch) : print_text(report, options.watch);
    const bool written = std::fflush(stdout) == 0;
    if (first) mention(seen);
    if (!written) return 1;
    const bool all_absent = !options.pids.empty() && seen.absent.size() == options.pids.size();
    if (!options.watch || all_absent) return seen.absent.empty() ? 0 : 1;
    std::this_thread::sleep_for(std::chrono::duration<double>(options.interval_s));
  }
}

}  // namespace clan::tool
