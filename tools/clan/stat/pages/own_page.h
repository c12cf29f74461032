// Pages in which processes keep their counters, each in a memfd of its own.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../proc.h"

namespace clan::tool {

template <typename T>
T value_in(const std::atomic<T>& counter) {
  return counter.load(std::memory_order_relaxed);  // relaxed: a private copy
}

/// Returns a text of a page that its process, or another one in its place, has written, for
/// terminals.
template <std::size_t size>
std::string text_in(const char (&bytes)[size]) {
  return printable(std::string(bytes, ::strnlen(bytes, size)));
}

/// Calls `take` with a copy of the page that each of these processes, or of all if there are none,
/// has in a memfd of this name.
template <typename Page, typename Take>
void for_own_pages(const std::vector<pid_t>& pids, const char* name, Take&& take) {
  const auto page = std::make_unique<Page>();
  for (const pid_t pid : pids.empty() ? all_processes() : pids) {
    const auto read = [&](const std::string& file) {
      // After a fork the child has the parent's, too.
      return copy_of(file, static_cast<void*>(page.get()), sizeof *page) &&
             page->magic == Page::kMagic && page->pid == static_cast<std::uint32_t>(pid);
    };
    if (find_memfd(pid, name, read)) take(static_cast<const Page&>(*page));
  }
}

}  // namespace clan::tool
