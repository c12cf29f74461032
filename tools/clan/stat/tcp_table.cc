#include "tcp_table.h"

#include <fmt/core.h>

#include <cstdio>
#include <fstream>

#include "proc.h"

namespace clan::tool {
namespace {

void read_tcp_table(const std::string& path, TcpTable& table) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);  // the heading
  while (std::getline(file, line)) {
    char local[48];
    char remote[48];
    unsigned state = 0;
    uid_t owner = 0;
    ino_t inode = 0;
    // "sl: local remote st tx:rx tr:when retransmits uid timeout inode …"
    if (std::sscanf(line.c_str(), " %*[^:]: %47s %47s %x %*s %*s %*s %u %*s %lu", local, remote,
                    &state, &owner, &inode) != 5) {
      continue;
    }
    constexpr unsigned kListen = 10;
    const auto from = parse_address(local);
    const auto to = parse_address(remote);
    if (from && to && inode != 0 && state != kListen) table[{*from, *to}] = {inode, owner};
  }
}

std::string network_of(pid_t pid) { return read_link(fmt::format("/proc/{}/ns/net", pid)); }

}  // namespace

const TcpTable& TcpTables::of(pid_t pid) {
  const auto [place, fresh] = tables_.try_emplace(network_of(pid));
  // One read may leave a connection out while others come and go.
  for (int read = 0; fresh && read < 2; ++read) {
    read_tcp_table(fmt::format("/proc/{}/net/tcp", pid), place->second);
    read_tcp_table(fmt::format("/proc/{}/net/tcp6", pid), place->second);
  }
  return place->second;
}

std::uint64_t TcpTables::number_of(pid_t pid) {
  std::uint64_t number = 0;
  return std::sscanf(network_of(pid).c_str(), "net:[%lu]", &number) == 1 ? number : 0;
}

}  // namespace clan::tool
