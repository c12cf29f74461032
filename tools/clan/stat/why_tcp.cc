#include "why_tcp.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <set>

namespace clan::tool {
namespace {

/// What keeps this process from moving a connection with these ports, whoever is at the other end; null:
/// nothing that is known here.
const char* obstacle(const ProcessFacts& facts, std::uint16_t local, std::uint16_t remote) {
  if (facts.small_files) return "the limit of file sizes (ulimit -f)";
  if (facts.many_pipes) return "the memory for connections (CLAN_MEMORY)";
  if (!facts.settings) return nullptr;
  if (facts.misunderstood) return "a setting that is not understood";
  if (facts.settings->disable) return "CLAN_DISABLE";
  if (facts.settings->excepts(local, remote)) return "CLAN_EXCEPT";
  if (facts.settings->leaves_out(local, remote)) return "CLAN_ONLY";
  return nullptr;
}

/// A filter of system calls may keep this end from moving; only the process knows what it lets pass.
std::string perhaps_filtered(const EndView& end, Processes& processes) {
  const auto under = under_clan(end, processes);
  const bool all = !under.empty() && std::all_of(under.begin(), under.end(),
                                                 [&](pid_t pid) { return processes.of(pid).filtered; });
  return all ? fmt::format(
                   "perhaps the filter of system calls (seccomp) of process {}; CLAN_LOG=info says which "
                   "call",
                   under[0])
             : "";
}

/// What descriptors tell of an end: all of its processes have an io_uring, or the connection as a standard
/// stream.
std::string by_descriptors(const Scan& scan, const EndView& end, ino_t socket, Processes& processes) {
  const auto under = under_clan(end, processes);
  const auto all_in = [&](const std::set<pid_t>& pids) {
    return !under.empty() &&
           std::all_of(under.begin(), under.end(), [&](pid_t pid) { return pids.count(pid) > 0; });
  };
  if (all_in(scan.rings)) return fmt::format("an io_uring of process {}", under[0]);
  const auto standard = scan.standard.find(socket);
  if (standard != scan.standard.end() && all_in(standard->second)) {
    return fmt::format("it is standard input or output of process {}", under[0]);
  }
  return "";
}

}  // namespace

std::vector<pid_t> under_clan(const EndView& end, Processes& processes) {
  std::vector<pid_t> under;
  std::copy_if(end.processes.begin(), end.processes.end(), std::back_inserter(under),
               [&](pid_t pid) { return processes.of(pid).has_library; });
  return under;
}

std::string why_not_moved(const Connection& connection, Processes& processes) {
  std::vector<pid_t> under[2];
  for (int end = 0; end < 2; ++end) {
    under[end] = under_clan(connection.ends[end], processes);
    const auto& there = connection.ends[end].processes;
    if (there.empty()) return "the other end's process cannot be looked into";
    if (under[end].empty()) {
      return fmt::format("the other end, process {}, runs without CLAN", *there.begin());
    }
  }
  for (int end = 0; end < 2; ++end) {
    const EndView& here = connection.ends[end];
    const EndView& there = connection.ends[1 - end];
    const char* why = nullptr;
    for (const pid_t pid : under[end]) {
      why = obstacle(processes.of(pid), here.address.port, there.address.port);
      if (why == nullptr) break;
    }
    if (why != nullptr) return fmt::format("{} of process {}", why, under[end][0]);
  }
  bool may_be_user = false;
  const auto owners = std::minmax(connection.ends[0].owner, connection.ends[1].owner);
  if (!owners.first || !owners.second) return "";
  const std::string users = fmt::format("users {} and {}, see CLAN_UIDS", *owners.first, *owners.second);
  for (int end = 0; end < 2; ++end) {
    const uid_t own = *connection.ends[end].owner;
    const uid_t other = *connection.ends[1 - end].owner;
    bool all_refuse = true;
    bool all_changed = true;
    for (const pid_t pid : under[end]) {
      const ProcessFacts& facts = processes.of(pid);
      if (!facts.has_user(other)) {
        return fmt::format("user {} is not in the user namespace of process {}", other, pid);
      }
      const bool same = !facts.user || *facts.user == other;
      all_refuse = all_refuse && !same && facts.settings && !facts.settings->names_uid(other);
      all_changed = all_changed && facts.user && *facts.user != own;
      may_be_user = may_be_user || (!same && !facts.settings);
    }
    if (all_refuse) return users;
    if (all_changed) {
      return fmt::format("process {} is not of user {}, which made its socket", under[end][0], own);
    }
  }
  return may_be_user ? "perhaps " + users : "";
}

std::string why_on_tcp(const Scan& scan, const Connection& connection, const ino_t (&sockets)[2],
                       Processes& processes) {
  std::string why = why_not_moved(connection, processes);
  for (int i = 0; i < 2 && why.empty(); ++i) {
    why = by_descriptors(scan, connection.ends[i], sockets[i], processes);
  }
  for (int i = 0; i < 2 && why.empty(); ++i) why = perhaps_filtered(connection.ends[i], processes);
  // Too few calls, or what only the process knows: RTLD_DEEPBIND, MSG_ZEROCOPY.
  return why.empty() ? "not used enough yet, or CLAN_LOG=info says why" : why;
}

}  // namespace clan::tool
