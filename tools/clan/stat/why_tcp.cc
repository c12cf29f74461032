#include "why_tcp.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "proc.h"

namespace clan::tool {
namespace {

using reasons::Reason;
using reasons::Why;

/// What keeps this process from moving a connection with these ports, whatever is at the other end;
/// null: nothing that is known here.
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

/// A filter of system calls may keep this end from moving; only the process knows what it lets
/// pass.
std::string perhaps_filtered(const ReasonPages& pages, const EndView& end, Processes& processes) {
  const auto under = under_clan(end, processes);
  const bool all = !under.empty() && std::all_of(under.begin(), under.end(), [&](pid_t pid) {
    return processes.of(pid).filtered && !pages.has(pid);
  });
  return all ? fmt::format(
                   "perhaps the filter of system calls (seccomp) of process {}, which may refuse "
                   "memfd_create too, by "
                   "which it would say so; CLAN_LOG=info says which call",
                   under[0])
             : "";
}

/// What descriptors show about an end: all of its processes have an io_uring, or the connection as
/// a standard stream.
std::string by_descriptors(const Scan& scan, const EndView& end, Processes& processes) {
  const auto under = under_clan(end, processes);
  const auto all_in = [&](const std::set<pid_t>& pids) {
    return !under.empty() &&
           std::all_of(under.begin(), under.end(), [&](pid_t pid) { return pids.count(pid) > 0; });
  };
  if (all_in(scan.rings)) return fmt::format("an io_uring of process {}", under[0]);
  const auto standard = scan.standard.find(end.socket);
  if (standard != scan.standard.end() && all_in(standard->second)) {
    return fmt::format("it is standard input or output of process {}", under[0]);
  }
  return "";
}

/// All processes of an end that were seen a moment ago.
bool have_ended(const EndView& end, Processes& processes) {
  return std::all_of(end.processes.begin(), end.processes.end(),
                     [&](pid_t pid) { return processes.of(pid).ended; });
}

/// An end has no process under CLAN, or none that may be looked into.
std::string lacks_clan(const Connection& connection, Processes& processes) {
  for (const EndView& end : connection.ends) {
    if (end.processes.empty()) return "the other end's process cannot be looked into";
    if (under_clan(end, processes).empty()) {
      if (have_ended(end, processes)) return "the other end's process has just ended";
      return fmt::format("the other end, process {}, runs without CLAN", *end.processes.begin());
    }
  }
  return "";
}

/// What settings, limits and users of both ends keep on TCP. `pages`: null if none have been read;
/// a process that has one names a refused user there.
std::string why_kept(const Connection& connection, Processes& processes, const ReasonPages* pages) {
  const std::vector<pid_t> under[2] = {under_clan(connection.ends[0], processes),
                                       under_clan(connection.ends[1], processes)};
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
  std::string users = fmt::format("users {} and {}, see CLAN_UIDS", *owners.first, *owners.second);
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
      const bool tells = pages != nullptr && pages->has(pid);
      may_be_user = may_be_user || (!same && !facts.settings && !tells);
    }
    if (all_refuse) return users;
    if (all_changed) {
      return fmt::format("process {} is not of user {}, which made its socket", under[end][0], own);
    }
  }
  return may_be_user ? "perhaps " + users : "";
}

/// What the ends say themselves.
struct Told {
  std::optional<Said> by[2];
  std::optional<Said> most;  ///< of both, the one that tells more
};

Told told_by(const ReasonPages& pages, Connection& connection, Processes& processes) {
  Told told;
  for (int i = 0; i < 2; ++i) {
    EndView& end = connection.ends[i];
    told.by[i] = pages.of_socket(end.socket, end.processes);
    if (told.by[i] && told.by[i]->reason.why == Why::kUnused) end.calls = told.by[i]->reason.number;
    const auto of_all = pages.of_processes(under_clan(end, processes), processes);
    for (const std::optional<Said>* said : {&std::as_const(told.by[i]), &of_all}) {
      if (*said && (!told.most || (*said)->reason.why > told.most->reason.why)) told.most = *said;
    }
  }
  return told;
}

std::string other_version(const Scan& scan, const EndView& end, Processes& processes) {
  const auto under = under_clan(end, processes);
  const bool all = std::all_of(under.begin(), under.end(),
                               [&](pid_t pid) { return scan.other_reasons.count(pid) > 0; });
  return all ? fmt::format("process {} has another version of CLAN", under[0]) : "";
}

/// A library in front of CLAN's may call the kernel by itself: then CLAN has not seen the
/// connection, or not how it was made, and looks for an offer that is never made.
std::string perhaps_in_front(const EndView& end, const std::optional<Said>& said,
                             Processes& processes) {
  if (said && said->reason.why == Why::kUnused && said->reason.number < reasons::kCallsNeeded)
    return "";
  const auto under = under_clan(end, processes);
  const bool all = std::all_of(under.begin(), under.end(),
                               [&](pid_t pid) { return !processes.of(pid).in_front.empty(); });
  return all ? fmt::format(
                   "{}process {}: {} is in front of CLAN (LD_PRELOAD), which may not see all calls",
                   said ? "" : "not used enough yet, or ", under[0],
                   printable(processes.of(under[0]).in_front))
             : "";
}

/// The end that has made fewer calls says how many.
std::string unused(const Told& told, const Connection& connection, Processes& processes) {
  const int less =
      connection.ends[0].calls.value_or(0) < connection.ends[1].calls.value_or(0) ? 0 : 1;
  if (told.by[less]) return text_of(*told.by[less]);
  const Reason none{0, Why::kUnused, false, 0};
  return text_of({under_clan(connection.ends[less], processes)[0], none});
}

}  // namespace

std::vector<pid_t> under_clan(const EndView& end, Processes& processes) {
  std::vector<pid_t> under;
  std::copy_if(end.processes.begin(), end.processes.end(), std::back_inserter(under),
               [&](pid_t pid) { return processes.of(pid).has_library; });
  return under;
}

std::string why_not_moved(const Connection& connection, Processes& processes) {
  const std::string lacks = lacks_clan(connection, processes);
  return !lacks.empty() ? lacks : why_kept(connection, processes, nullptr);
}

std::string why_on_tcp(const Scan& scan, const ReasonPages& pages, Connection& connection,
                       Processes& processes) {
  std::string why = lacks_clan(connection, processes);
  if (!why.empty()) return why;
  const Told told = told_by(pages, connection, processes);
  const bool of_users = told.most && (told.most->reason.why == Why::kOtherUser ||
                                      told.most->reason.why == Why::kUnmappedUser);
  // Their numbers are known here only.
  if (told.most && !of_users && !reasons::is_weak(told.most->reason.why))
    return text_of(*told.most);
  why = why_kept(connection, processes, &pages);
  if (why.empty() && of_users) why = text_of(*told.most);
  for (int i = 0; i < 2 && why.empty(); ++i)
    why = by_descriptors(scan, connection.ends[i], processes);
  for (int i = 0; i < 2 && why.empty(); ++i)
    why = other_version(scan, connection.ends[i], processes);
  for (int i = 0; i < 2 && why.empty(); ++i)
    why = perhaps_filtered(pages, connection.ends[i], processes);
  for (int i = 0; i < 2 && why.empty(); ++i) {
    why = perhaps_in_front(connection.ends[i], told.by[i], processes);
  }
  if (!why.empty()) return why;
  if (told.most && told.most->reason.why != Why::kUnused) return text_of(*told.most);
  return unused(told, connection, processes);
}

std::string why_far_on_tcp(const Scan& scan, const ReasonPages& pages, Connection& connection,
                           Processes& processes) {
  const Told told = told_by(pages, connection, processes);
  if (told.most && !reasons::is_weak(told.most->reason.why)) return text_of(*told.most);
  std::string why = why_kept(connection, processes, &pages);
  if (why.empty()) why = by_descriptors(scan, connection.ends[0], processes);
  if (why.empty()) why = perhaps_filtered(pages, connection.ends[0], processes);
  if (!why.empty()) return why;
  const Reason none{0, Why::kUnused, false, 0};
  const Said said = told.most.value_or(Said{under_clan(connection.ends[0], processes)[0], none});
  const bool has_asked =
      said.reason.why != Why::kUnused || said.reason.number >= reasons::kCallsNeeded;
  return text_of(said) + (has_asked ? "; `clan ping` says whether CLAN answers on that host" : "");
}

void add_what_is_said(const ReasonPages& pages, Connection& connection) {
  if (std::strcmp(connection.path, "tcp") != 0) return;
  const Said* most = nullptr;
  std::optional<Said> by[2];
  for (int i = 0; i < 2; ++i) {
    by[i] = pages.of_socket(connection.ends[i].socket, connection.ends[i].processes);
    if (by[i] && (most == nullptr || by[i]->reason.why > most->reason.why)) most = &*by[i];
  }
  if (most != nullptr && most->reason.why != Why::kUnused) connection.why += "; " + text_of(*most);
}

}  // namespace clan::tool
