// What `clan stat` shows of CORBA connections over CLAN.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace clan::tool {

/// A process's table, as it was found under /proc/<holder>/fd: by holder. Its children may have it,
/// too.
using OrbTable = std::map<pid_t, std::string>;

/// A connection, seen from one end; bytes and messages: sent, received.
struct OrbRow {
  std::pair<dev_t, ino_t> table;
  std::uint32_t number = 0;
  std::uint64_t created_ns = 0;
  pid_t pid = 0;
  pid_t peer = 0;
  bool client = false;
  bool remote = false;  ///< `peer` is a process of another host
  std::uint64_t bytes[2] = {0, 0};
  std::uint64_t messages[2] = {0, 0};
};

/// What the link of a table's descriptor reads.
std::string orb_table_link();
/// Each connection once.
std::vector<OrbRow> read_orb_tables(const std::map<std::pair<dev_t, ino_t>, OrbTable>& tables);

}  // namespace clan::tool
