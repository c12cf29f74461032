// The tables of CORBA connections that omniORB programs keep (plugins/omniorb/traffic_page.h), for
// `clan stat`.
#include "orb_tables.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <omniorb/traffic_page.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

namespace clan::tool {
namespace {

// All of it is the word of a process that may be hostile: copied, never mapped, bounds known
// beforehand. Nothing: it is not the holder's, which has inherited it or cannot be looked into.
std::optional<std::vector<OrbRow>> read_table(pid_t holder, const std::string& link,
                                              const std::pair<dev_t, ino_t>& expected) {
  const int fd = open(link.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return std::nullopt;
  struct stat about {};
  orb::TrafficHead head{};
  std::optional<std::vector<OrbRow>> out;
  const bool same = fstat(fd, &about) == 0 && std::pair(about.st_dev, about.st_ino) == expected;
  if (same && pread(fd, static_cast<void*>(&head), sizeof head, 0) == sizeof head &&
      head.magic == orb::kTrafficMagic && head.pid == static_cast<std::uint32_t>(holder)) {
    const std::uint32_t used = std::min(head.used.load(), orb::kTrafficRows);
    out.emplace();
    for (std::uint32_t i = 0; i < used; ++i) {
      orb::TrafficRow row{};
      const auto at = static_cast<off_t>(sizeof head + std::size_t{i} * sizeof row);
      if (pread(fd, static_cast<void*>(&row), sizeof row, at) != sizeof row) break;
      const std::uint32_t role = row.role.load();
      if (role != 1 && role != 2) continue;
      out->push_back({.table = expected,
                      .number = i,
                      .created_ns = row.created_ns,
                      .pid = holder,
                      .peer = static_cast<pid_t>(row.peer_pid),
                      .client = role == 1,
                      .remote = row.remote == 1,
                      .bytes = {row.bytes_out.load(), row.bytes_in.load()},
                      .messages = {row.messages_out.load(), row.messages_in.load()}});
    }
  }
  close(fd);
  return out;
}

}  // namespace

std::string orb_table_link() { return fmt::format("/memfd:{} (deleted)", orb::kTrafficName); }

std::vector<OrbRow> read_orb_tables(const std::map<std::pair<dev_t, ino_t>, OrbTable>& tables) {
  std::vector<OrbRow> clients, servers;
  std::vector<pid_t> readable;
  for (const auto& [id, table] : tables) {
    for (const auto& [holder, link] : table) {
      const auto rows = read_table(holder, link, id);
      if (!rows) continue;
      readable.push_back(holder);
      for (const OrbRow& row : *rows) (row.client ? clients : servers).push_back(row);
    }
  }
  // Each connection is in both tables: the client's row is shown, or the server's where that cannot
  // be read.
  for (const OrbRow& row : servers) {
    const bool shown =
        !row.remote && std::find(readable.begin(), readable.end(), row.peer) != readable.end();
    if (!shown) clients.push_back(row);
  }
  return clients;
}

}  // namespace clan::tool
