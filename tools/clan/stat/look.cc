#include "look.h"

#include <clan/face/socket_face.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "../commands.h"
#include "pipe_page.h"
#include "process.h"
#include "reasons.h"
#include "scan.h"
#include "tcp_table.h"
#include "unmoved.h"
#include "why_tcp.h"

namespace clan::tool {
namespace {

#ifdef CLAN_OMNIORB
Connection describe(const OrbRow& row) {
  Connection connection;
  // The same process may have many: the number of the row tells them apart.
  connection.id = {row.table.first, row.table.second * 65536 + row.number, row.created_ns};
  connection.in_pipe = connection.corba = true;
  connection.path = row.remote ? "udp" : "shm";
  connection.why = "CORBA";
  const int mine = row.client ? 0 : 1;
  connection.ends[mine].processes = {row.pid};
  if (!row.remote) connection.ends[1 - mine].processes = {row.peer};
  for (const int end : {0, 1}) {
    connection.ends[end].bytes = row.bytes[end == mine ? 0 : 1];
    connection.ends[end].messages = row.messages[end == mine ? 0 : 1];
  }
  return connection;
}
#endif

bool wanted(const Connection& connection, const std::vector<pid_t>& pids) {
  return pids.empty() || std::any_of(pids.begin(), pids.end(), [&](pid_t pid) {
           return connection.ends[0].processes.count(pid) +
                      connection.ends[1].processes.count(pid) >
                  0;
         });
}

/// Local connections of whose ends no holder may be looked into.
std::size_t count_unseen(const Scan& scan, const TcpTables& tables) {
  std::size_t count = 0;
  for (const auto& [name, table] : tables.all()) {
    for (const auto& [pair, socket] : table) {
      const auto other = table.find(pair.mirrored());
      if (other == table.end() || pair.mirrored() < pair) continue;
      count +=
          scan.sockets.count(socket.inode) + scan.sockets.count(other->second.inode) == 0 ? 1 : 0;
    }
  }
  return count;
}

}  // namespace

Look look(const StatOptions& options) {
  const Scan scan = scan_processes();
  Look result;
  result.refused = scan.refused;
  TcpTables tables;
  Processes processes;
  const ReasonPages pages(scan);
  for (const auto& [id, file] : scan.pipes) {
    PipePage page{};
    const PageState state = read_page(file.link, id, page);
    if (state == PageState::kOtherVersion) ++result.other_versions;
    if (state != PageState::kPipe) continue;
    Connection connection = describe(page, id);
    find_processes(scan, file, page, tables, connection);
    // One end has made the pipe, and the other may never take it.
    const std::uint64_t differ = connection.ends[0].state ^ connection.ends[1].state;
    if (connection.about_to_move && (differ & socket_face::kAttached) != 0) {
      const std::string why = why_not_moved(connection, processes);
      if (!why.empty()) connection.why = why;
    }
    add_what_is_said(pages, connection);
    result.connections.push_back(std::move(connection));
  }
#ifdef CLAN_OMNIORB
  for (const OrbRow& row : read_orb_tables(scan.orb_tables))
    result.connections.push_back(describe(row));
#endif
  if (options.all) add_unmoved(scan, pages, tables, processes, result.connections);
  for (Connection& connection : result.connections) {
    for (EndView& end : connection.ends) {
      if (!end.processes.empty()) end.network = TcpTables::number_of(*end.processes.begin());
    }
  }
  if (scan.refused > 0) {
    (void)tables.of(getpid());
    result.unseen = count_unseen(scan, tables);
  }
  std::erase_if(result.connections, [&](const Connection& c) { return !wanted(c, options.pids); });
  for (Connection& connection : result.connections) {
    // The process that was asked for sits at the local end.
    const bool local = std::any_of(options.pids.begin(), options.pids.end(), [&](pid_t pid) {
      return connection.ends[0].processes.count(pid) > 0;
    });
    if (!options.pids.empty() && !local) std::swap(connection.ends[0], connection.ends[1]);
  }
  const auto order = [](const Connection& a, const Connection& b) {
    return std::tie(a.ends[0].address, a.ends[1].address, a.id) <
           std::tie(b.ends[0].address, b.ends[1].address, b.id);
  };
  std::sort(result.connections.begin(), result.connections.end(), order);
  for (const pid_t pid : options.pids) {
    if (scan.seen.count(pid) == 0) result.absent.push_back(pid);
  }
  return result;
}

}  // namespace clan::tool
