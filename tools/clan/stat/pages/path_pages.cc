#include "path_pages.h"

#include <algorithm>
#include <memory>
#include <tuple>

#include "../proc.h"

namespace clan::tool {
namespace {

constexpr const char* kModes[] = {"off", "integrity", "encrypt"};

void add_rows(const PathPage& page, HostPaths& all) {
  // relaxed: a private copy
  const std::uint64_t port = page.port.load(std::memory_order_relaxed);
  all.not_shown += page.not_shown.load(std::memory_order_relaxed);
  for (const PathRow& row : page.rows) {
    HostPath path;
    if (!read_row(row, &path.values) || path.values.port == 0) continue;
    path.pid = static_cast<pid_t>(page.pid);
    path.port = static_cast<std::uint16_t>(port);
    path.peer = make_address(path.values.ip, false, static_cast<std::uint16_t>(path.values.port));
    path.mode = kModes[std::min<std::uint64_t>(page.mode, 2)];
    path.packets = name_of(static_cast<PacketPath>(path.values.packets));
    all.paths.push_back(path);
  }
}

}  // namespace

HostPaths read_path_pages(const std::vector<pid_t>& pids) {
  HostPaths all;
  const auto page = std::make_unique<PathPage>();
  for (const pid_t pid : pids.empty() ? all_processes() : pids) {
    (void)find_memfd(pid, kPathMemfdName, [&](const std::string& file) {
      // After a fork the child has the parent's, too. A process may have several contexts.
      if (copy_of(file, static_cast<void*>(page.get()), sizeof *page) &&
          page->magic == PathPage::kMagic && page->pid == static_cast<std::uint64_t>(pid)) {
        add_rows(*page, all);
      }
      return false;
    });
  }
  std::stable_sort(all.paths.begin(), all.paths.end(), [](const HostPath& a, const HostPath& b) {
    return std::tie(a.pid, a.port, a.peer) < std::tie(b.pid, b.port, b.peer);
  });
  return all;
}

}  // namespace clan::tool
