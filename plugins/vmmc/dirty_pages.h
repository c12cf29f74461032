// DirtyPages: the pages of a range that this process has written since the last scan. The kernel
// write-protects them and removes the protection itself (userfaultfd, WP_ASYNC), so system calls
// that write there work; PAGEMAP_SCAN lists and protects them in one step (Linux 6.7).
//
// If the kernel has neither, or the memory cannot be registered, every page counts as written. The
// object requests no events, so munmap and mremap do not wait for it. Thread-safety: one thread
// at a time.
#pragma once

#include <clan/result.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace clan::vmmc {

class DirtyPages {
 public:
  DirtyPages(const std::byte* address, std::size_t bytes);
  ~DirtyPages();
  DirtyPages(const DirtyPages&) = delete;
  DirtyPages& operator=(const DirtyPages&) = delete;

  /// Checks whether the kernel reports writes.
  bool told() const { return pagemap_ >= 0; }

  /// Protects the written stretches of the range again, then calls `written(offset, bytes)` for
  /// each, in order of address, until it returns an error. EFAULT: other memory has taken the place
  /// of some; that is left out, and so are pages that are not mapped.
  Status scan(const std::function<Status(std::size_t, std::size_t)>& written);

 private:
  Status start();
  std::uint64_t first_ = 0, last_ = 0;  ///< the pages
  std::uint64_t begin_ = 0;             ///< the range in them
  std::size_t bytes_ = 0;
  int faults_ = -1, pagemap_ = -1;
};

}  // namespace clan::vmmc
