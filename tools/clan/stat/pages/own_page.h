// Pages in which processes keep their counters, each in a memfd of its own (clan/face/*_face.h),
// found under /proc/PID/fd.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
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

template <typename Page>
using Pages = std::vector<std::shared_ptr<const Page>>;

/// Returns copies of the pages, `most` of each, that these processes, or all if there are none,
/// have in memfds of this name.
template <typename Page>
Pages<Page> own_pages(const std::vector<pid_t>& pids, const char* name, std::size_t most = 1) {
  Pages<Page> found;
  auto page = std::make_shared<Page>();
  for (const pid_t pid : pids.empty() ? all_processes() : pids) {
    std::size_t its = 0;
    (void)find_memfd(pid, name, [&](const std::string& file) {
      // After a fork the child has the parent's, too.
      if (copy_of(file, static_cast<void*>(page.get()), sizeof *page) &&
          page->magic == Page::kMagic && page->pid == static_cast<std::uint32_t>(pid)) {
        found.push_back(std::exchange(page, std::make_shared<Page>()));
        ++its;
      }
      return its == most;
    });
  }
  return found;
}

}  // namespace clan::tool
