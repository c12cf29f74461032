#include "via_pages.h"

#include <clan/via_face.h>

#include <algorithm>
#include <memory>

#include "proc.h"

namespace clan::tool {
namespace {

using via::ViaPage;
using via::ViaRow;

template <typename T>
T value_in(const std::atomic<T>& counter) {
  return counter.load(std::memory_order_relaxed);  // relaxed: a private copy
}

bool read_via_page(const std::string& file, pid_t pid, ViaPage* page) {
  // After a fork the child has the parent's, too.
  return copy_of(file, static_cast<void*>(page), sizeof *page) && page->magic == ViaPage::kMagic &&
         page->pid == static_cast<std::uint32_t>(pid);
}

}  // namespace

std::vector<ViaConnection> read_via_pages(const std::vector<pid_t>& pids) {
  std::vector<ViaConnection> found;
  const auto page = std::make_unique<ViaPage>();
  for (const pid_t pid : pids.empty() ? all_processes() : pids) {
    const auto read = [&](const std::string& file) { return read_via_page(file, pid, page.get()); };
    if (!find_memfd(pid, via::kViaMemfdName, read)) continue;
    const std::uint32_t rows = std::min<std::uint32_t>(value_in(page->rows), ViaPage::kRows);
    for (std::uint32_t i = 0; i < rows; ++i) {
      const ViaRow& row = page->row[i];
      if (value_in(row.open) == 0) continue;
      found.push_back({.pid = page->pid,
                       .peer_pid = value_in(row.peer_pid),
                       .number = value_in(row.connection),
                       .sent = value_in(row.sent),
                       .sent_bytes = value_in(row.sent_bytes),
                       .received = value_in(row.received),
                       .received_bytes = value_in(row.received_bytes),
                       .rdma = value_in(row.rdma),
                       .rdma_bytes = value_in(row.rdma_bytes),
                       .moved = value_in(row.moved),
                       .dropped = value_in(row.dropped),
                       .hostile = value_in(page->hostile)});
    }
  }
  return found;
}

}  // namespace clan::tool
