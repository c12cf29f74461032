#include "unmoved.h"

#include <sys/types.h>

#include <algorithm>
#include <set>

#include "why_tcp.h"

namespace clan::tool {
namespace {

EndView end_of(const Scan& scan, const Address& address, const TcpSocket& socket) {
  EndView end;
  end.address = address;
  end.owner = socket.owner;
  end.socket = socket.inode;
  const auto holders = scan.sockets.find(socket.inode);
  if (holders != scan.sockets.end()) end.processes = holders->second;
  return end;
}

/// One of its processes moves connections to other hosts.
bool reaches_others(const EndView& end, Processes& processes) {
  const auto under = under_clan(end, processes);
  return std::any_of(under.begin(), under.end(), [&](pid_t pid) {
    const ProcessFacts& facts = processes.of(pid);
    return facts.settings && facts.settings->net;
  });
}

}  // namespace

void add_unmoved(const Scan& scan, const ReasonPages& pages, TcpTables& tables,
                 Processes& processes, std::vector<Connection>& listed) {
  std::set<TcpPair> known;
  for (const Connection& connection : listed) {
    known.insert({connection.ends[0].address, connection.ends[1].address});
    known.insert({connection.ends[1].address, connection.ends[0].address});
  }
  std::set<const TcpTable*> to_search;
  std::set<pid_t> with_sockets;
  for (const auto& [inode, holders] : scan.sockets)
    with_sockets.insert(holders.begin(), holders.end());
  for (const pid_t pid : with_sockets) {
    if (processes.of(pid).has_library) to_search.insert(&tables.of(pid));
  }
  for (const TcpTable* table : to_search) {
    for (const auto& [pair, socket] : *table) {
      if (known.count(pair) > 0) continue;
      const auto other = table->find(pair.mirrored());
      const bool far = other == table->end();
      if (far && pair.local.ip == pair.remote.ip) continue;  // the other end has just gone
      Connection connection;
      connection.ends[0] = end_of(scan, pair.local, socket);
      if (far) {
        connection.ends[1].address = pair.remote;
      } else {
        connection.ends[1] = end_of(scan, pair.remote, other->second);
      }
      if (far ? !reaches_others(connection.ends[0], processes)
              : under_clan(connection.ends[0], processes).empty() &&
                    under_clan(connection.ends[1], processes).empty()) {
        continue;
      }
      connection.why = far ? why_far_on_tcp(scan, pages, connection, processes)
                           : why_on_tcp(scan, pages, connection, processes);
      if (!far) known.insert(pair.mirrored());
      listed.push_back(connection);
    }
  }
}

}  // namespace clan::tool
