#include "dirty_pages.h"

#include <clan/detail/log.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

namespace clan::vmmc {
namespace {

// From linux/userfaultfd.h and linux/fs.h; older headers lack them.
constexpr std::uint64_t kSharedMemory = 1 << 12;  // UFFD_FEATURE_WP_HUGETLBFS_SHMEM
constexpr std::uint64_t kUnpopulated = 1 << 13;   // UFFD_FEATURE_WP_UNPOPULATED
constexpr std::uint64_t kAsync = 1 << 15;         // UFFD_FEATURE_WP_ASYNC

struct PageRegion {
  std::uint64_t start = 0, end = 0, categories = 0;
};
struct ScanArgument {
  std::uint64_t size = sizeof(ScanArgument);
  std::uint64_t flags = 0;
  std::uint64_t start = 0, end = 0, walk_end = 0;
  std::uint64_t vector = 0, vector_length = 0;
  std::uint64_t most_pages = 0;
  std::uint64_t inverted = 0, all_of = 0, any_of = 0, returned = 0;
};
static_assert(sizeof(ScanArgument) == 96);
constexpr unsigned long kPagemapScan = _IOWR('f', 16, ScanArgument);
constexpr std::uint64_t kProtect = 1, kOnlyRegistered = 2;  // PM_SCAN_WP_MATCHING, _CHECK_WPASYNC
constexpr std::uint64_t kRegistered = 1, kWritten = 2;      // PAGE_IS_WPALLOWED, PAGE_IS_WRITTEN

int open_userfaultfd() {
  const int fd =
      static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = kAsync | kUnpopulated | kSharedMemory;
  if (fd >= 0 && ::ioctl(fd, UFFDIO_API, &api) == 0) return fd;
  const int err = errno;
  if (fd >= 0) ::close(fd);
  errno = err;
  return -1;
}

}  // namespace

DirtyPages::DirtyPages(const std::byte* address, std::size_t bytes)
    : begin_(reinterpret_cast<std::uintptr_t>(address)), bytes_(bytes) {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  first_ = begin_ / page * page;
  last_ = (begin_ + bytes + page - 1) / page * page;
  const Status s = start();
  if (s) return;
  CLAN_INFO("a mirror compares all of its memory: %s", s.error().message().c_str());
  if (pagemap_ >= 0) ::close(std::exchange(pagemap_, -1));
}

Status DirtyPages::start() {
  faults_ = open_userfaultfd();
  if (faults_ < 0) return errno_error("userfaultfd with WP_ASYNC");
  uffdio_register range{};
  range.range = {first_, last_ - first_};
  range.mode = UFFDIO_REGISTER_MODE_WP;
  if (::ioctl(faults_, UFFDIO_REGISTER, &range) != 0) return errno_error("userfaultfd: register");
  pagemap_ = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (pagemap_ < 0) return errno_error("/proc/self/pagemap");
  Status s = scan([](std::size_t, std::size_t) { return Status(); });
  if (!s) return s;
  return {};
}

DirtyPages::~DirtyPages() {
  if (faults_ >= 0) {
    // A forked child may hold the descriptor.
    uffdio_range range{first_, last_ - first_};
    (void)::ioctl(faults_, UFFDIO_UNREGISTER, &range);
    ::close(faults_);
  }
  if (pagemap_ >= 0) ::close(pagemap_);
}

Status DirtyPages::scan(const std::function<Status(std::size_t, std::size_t)>& written) {
  if (!told()) return written(0, bytes_);
  std::array<PageRegion, 256> regions;
  ScanArgument argument;
  argument.flags = kProtect | kOnlyRegistered;
  argument.start = first_;
  argument.end = last_;
  argument.vector = reinterpret_cast<std::uintptr_t>(regions.data());
  argument.vector_length = regions.size();
  argument.all_of = argument.returned = kRegistered | kWritten;
  Status foreign;
  while (argument.start < last_) {
    const int n = ::ioctl(pagemap_, kPagemapScan, &argument);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EPERM && foreign) {
      foreign = Error{EFAULT, "other memory is in the place of a mirror's"};
      argument.flags = kProtect;
      continue;
    }
    if (n < 0) return errno_error("PAGEMAP_SCAN");
    for (int i = 0; i < n; ++i) {
      const std::uint64_t start = std::max(regions[static_cast<std::size_t>(i)].start, begin_);
      const std::uint64_t end = std::min(regions[static_cast<std::size_t>(i)].end, begin_ + bytes_);
      if (auto s = written(start - begin_, end - start); !s) return s;
    }
    argument.start = argument.walk_end;
  }
  return foreign;
}

}  // namespace clan::vmmc
