// DirtyPages: which pages of a range this process has written since last asked. The kernel
// write-protects them and takes the protection away by itself (userfaultfd, WP_ASYNC), so system
// calls that write there work; PAGEMAP_SCAN tells and protects again in one step (Linux 6.7).
//
// Where the kernel has neither, or the memory cannot be registered, every page counts as written.
// No event is asked for: munmap and mremap do not wait for this object. Thread-safety: one thread
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

  /// Whether the kernel tells.
  bool told() const { return pagemap_ >= 0; }

  /// Calls `written(offset, bytes)` for stretches of the range, in order of address, until it
  /// answers an error. They are protected again before. EFAULT: other memory is in the place of
  /// some, which is left out; as are pages that are not mapped.
  Status scan(const std::function<Status(std::size_t, std::size_t)>& written);

 private:
  Status start();
  std::uint64_t first_ = 0, last_ = 0;  ///< the pages
  std::uint64_t begin_ = 0;             ///< the range in them
  std::size_t bytes_ = 0;
  int faults_ = -1, pagemap_ = -1;
};

}  // namespace clan::vmmc
