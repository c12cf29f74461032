#include "unmoved.h"

#include <sys/types.h>

#include <set>

#include "why_tcp.h"

namespace clan::tool {

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
      const auto other = table->find(pair.mirrored());
      if (other == table->end() || known.count(pair) > 0) continue;
      Connection connection;
      const TcpSocket sockets[2] = {socket, other->second};
      bool served = false;
      for (int i = 0; i < 2; ++i) {
        EndView& end = connection.ends[i];
        end.address = i == 0 ? pair.local : pair.remote;
        end.owner = sockets[i].owner;
        end.socket = sockets[i].inode;
        const auto holders = scan.sockets.find(sockets[i].inode);
        if (holders != scan.sockets.end()) end.processes = holders->second;
        served = served || !under_clan(end, processes).empty();
      }
      if (!served) continue;
      connection.why = why_on_tcp(scan, pages, connection, processes);
      known.insert(pair.mirrored());
      listed.push_back(connection);
    }
  }
}

}  // namespace clan::tool
