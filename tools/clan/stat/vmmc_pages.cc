#include "vmmc_pages.h"

#include <clan/vmmc_face.h>

#include <memory>

#include "proc.h"

namespace clan::tool {
namespace {

using vmmc::VmmcPage;

std::uint64_t value_in(const VmmcPage::Count& counter) {
  return counter.load(std::memory_order_relaxed);  // relaxed: a private copy
}

bool read_vmmc_page(const std::string& file, pid_t pid, VmmcPage* page) {
  // After a fork the child has the parent's, too.
  return copy_of(file, static_cast<void*>(page), sizeof *page) && page->magic == VmmcPage::kMagic &&
         page->pid == static_cast<std::uint32_t>(pid);
}

}  // namespace

std::vector<VmmcCounters> read_vmmc_pages(const std::vector<pid_t>& pids) {
  std::vector<VmmcCounters> found;
  const auto page = std::make_unique<VmmcPage>();
  for (const pid_t pid : pids.empty() ? all_processes() : pids) {
    const auto read = [&](const std::string& file) {
      return read_vmmc_page(file, pid, page.get());
    };
    if (!find_memfd(pid, vmmc::kVmmcMemfdName, read)) continue;
    found.push_back({.pid = page->pid,
                     .buffers = value_in(page->buffers),
                     .remotes = value_in(page->remotes),
                     .bindings = value_in(page->bindings),
                     .sends = value_in(page->sends),
                     .sent_bytes = value_in(page->sent_bytes),
                     .notified = value_in(page->notified),
                     .delivered = value_in(page->delivered),
                     .ignored = value_in(page->ignored),
                     .lost = value_in(page->lost),
                     .flushes = value_in(page->flushes),
                     .compared_bytes = value_in(page->compared_bytes),
                     .mirrored_bytes = value_in(page->mirrored_bytes),
                     .hostile = value_in(page->hostile)});
  }
  return found;
}

}  // namespace clan::tool
