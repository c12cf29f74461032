#include "unet_pages.h"

#include <clan/unet_face.h>

#include <algorithm>
#include <memory>

#include "proc.h"

namespace clan::tool {
namespace {

using unet::UnetPage;
using unet::UnetRow;

template <typename T>
T count_in(const std::atomic<T>& counter) {
  return counter.load(std::memory_order_relaxed);  // relaxed: a private copy
}

bool read_unet_page(const std::string& file, pid_t pid, UnetPage* page) {
  // After a fork the child has the parent's, too.
  return copy_of(file, static_cast<void*>(page), sizeof *page) && page->magic == UnetPage::kMagic &&
         page->pid == static_cast<std::uint32_t>(pid);
}

}  // namespace

std::vector<UnetEndpoint> read_unet_pages(const std::vector<pid_t>& pids) {
  std::vector<UnetEndpoint> found;
  const auto page = std::make_unique<UnetPage>();
  for (const pid_t pid : pids.empty() ? all_processes() : pids) {
    const auto read = [&](const std::string& file) {
      return read_unet_page(file, pid, page.get());
    };
    if (!find_memfd(pid, unet::kUnetMemfdName, read)) continue;
    const std::uint32_t rows = std::min<std::uint32_t>(count_in(page->rows), UnetPage::kRows);
    for (std::uint32_t i = 0; i < rows; ++i) {
      const UnetRow& row = page->row[i];
      if (count_in(row.open) == 0) continue;
      found.push_back({.pid = page->pid,
                       .channels = count_in(row.channels),
                       .emulated = count_in(row.emulated),
                       .number = count_in(row.number),
                       .sent = count_in(row.sent),
                       .sent_bytes = count_in(row.sent_bytes),
                       .received = count_in(row.received),
                       .received_bytes = count_in(row.received_bytes),
                       .dropped_buffer = count_in(row.dropped_buffer),
                       .dropped_queue = count_in(row.dropped_queue),
                       .dropped_tag = count_in(row.dropped_tag),
                       .returned = count_in(row.returned),
                       .deferrals = count_in(row.deferrals),
                       .hostile = count_in(page->hostile)});
    }
  }
  return found;
}

}  // namespace clan::tool
