#include "nic/unmap_monitor.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "base/fork_lock.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

namespace clan::nic {
namespace {

// PROCMAP_QUERY of linux/fs.h, which older headers lack.
struct MappingQuery {
  std::uint64_t size = sizeof(MappingQuery);
  std::uint64_t query_flags = 0;
  std::uint64_t query_addr = 0;
  std::uint64_t start = 0;
  std::uint64_t end = 0;
  std::uint64_t flags = 0;
  std::uint64_t page_size = 0;
  std::uint64_t offset = 0;
  std::uint64_t inode = 0;
  std::uint32_t dev_major = 0;
  std::uint32_t dev_minor = 0;
  std::uint32_t name_size = 0;
  std::uint32_t build_id_size = 0;
  std::uint64_t name_addr = 0;
  std::uint64_t build_id_addr = 0;
};
static_assert(sizeof(MappingQuery) == 104);
constexpr unsigned long kQueryMapping = _IOWR('f', 17, MappingQuery);

constexpr std::uint64_t kNeeded = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP |
                                  UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_PAGEFAULT_FLAG_WP;
constexpr std::uint64_t kShared = UFFD_FEATURE_WP_HUGETLBFS_SHMEM;  // memfd, shared anonymous

// A child that kept the parent's descriptor would keep the parent's ranges registered after the
// parent closed it, with nobody to read: the parent's next munmap would sleep for ever. So a forked
// child closes what it finds here. The lock is held over fork.
constexpr std::size_t kMostMonitors = 64;
constinit std::mutex monitors_mutex;
constinit std::array<int, kMostMonitors> open_fds{};  // fd + 1, 0 = free
constinit std::atomic<unsigned> fork_generation{0};   // relaxed: a child starts with one thread

void close_in_child() {
  fork_generation.fetch_add(1, std::memory_order_relaxed);
  for (int& entry : open_fds) {
    int fd = std::exchange(entry, 0) - 1;
    if (fd >= 0) ::close(fd);
  }
}

Result<Fd> open_userfaultfd(std::uint64_t features) {
  Fd fd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY)));
  if (!fd) return errno_error("userfaultfd");
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = features;
  if (::ioctl(fd.get(), UFFDIO_API, &api) != 0) return errno_error("userfaultfd: events");
  return fd;
}

}  // namespace

UnmapMonitor UnmapMonitor::open() {
  UnmapMonitor monitor;
  monitor.fork_generation_ = fork_generation.load(std::memory_order_relaxed);
  if (!hold_over_forks<monitors_mutex, close_in_child>()) {
    monitor.why_not_ = Error{ENOMEM, "pthread_atfork"};
    return monitor;
  }
  std::lock_guard lock(monitors_mutex);
  auto free = std::find(open_fds.begin(), open_fds.end(), 0);
  if (free == open_fds.end()) {
    monitor.why_not_ = Error{EMFILE, "too many unmap monitors in this process"};
    return monitor;
  }
  Result<Fd> fd = open_userfaultfd(kNeeded | kShared);
  if (!fd && fd.error().err == EINVAL) fd = open_userfaultfd(kNeeded);
  if (!fd) {
    monitor.why_not_ = fd.error();
    return monitor;
  }
  *free = fd->get() + 1;
  monitor.slot_ = static_cast<int>(free - open_fds.begin());
  monitor.fd_ = std::move(*fd);
  monitor.maps_ = Fd(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  return monitor;
}

UnmapMonitor::UnmapMonitor(UnmapMonitor&& other) noexcept
    : fd_(std::move(other.fd_)),
      maps_(std::move(other.maps_)),
      why_not_(other.why_not_),
      slot_(std::exchange(other.slot_, -1)),
      fork_generation_(other.fork_generation_) {}

UnmapMonitor::~UnmapMonitor() { close(); }

void UnmapMonitor::close() {
  maps_.reset();
  if (fork_generation_ != fork_generation.load(std::memory_order_relaxed)) {
    fd_.release();  // closed at the fork; the number may be someone else's by now
  } else if (slot_ >= 0) {
    std::lock_guard lock(monitors_mutex);
    fd_.reset();
    open_fds[static_cast<std::size_t>(slot_)] = 0;
  }
  slot_ = -1;
}

bool UnmapMonitor::available() const {
  return fd_ && fork_generation_ == fork_generation.load(std::memory_order_relaxed);
}

Status UnmapMonitor::watch(std::uint64_t start, std::uint64_t length) {
  if (!available()) return Error{ENOSYS, "unmap monitor not available"};
  std::uint64_t end = start + length;
  uffdio_register request{};
  for (std::uint64_t at = start; at < end; at = request.range.start + request.range.len) {
    request.range = {at, end - at};
    MappingQuery query;
    query.query_addr = at;
    if (maps_ && ::ioctl(maps_.get(), kQueryMapping, &query) == 0) {
      request.range = {query.start, query.end - query.start};
    }
    // Write-protect mode, and nothing is ever write-protected: events without page faults.
    request.mode = UFFDIO_REGISTER_MODE_WP;
    if (::ioctl(fd_.get(), UFFDIO_REGISTER, &request) != 0) {
      return errno_error("userfaultfd: watch");
    }
  }
  return {};
}

bool UnmapMonitor::read_event(Change& change) {
  if (!available()) return false;
  uffd_msg message{};
  for (;;) {
    ssize_t n = ::read(fd_.get(), &message, sizeof message);
    if (n < 0 && errno == EINTR) continue;
    if (n != static_cast<ssize_t>(sizeof message)) return false;
    if (message.event == UFFD_EVENT_UNMAP || message.event == UFFD_EVENT_REMOVE) {
      change.kind = message.event == UFFD_EVENT_UNMAP ? Kind::kUnmapped : Kind::kEmptied;
      change.start = message.arg.remove.start;
      change.length = message.arg.remove.end - message.arg.remove.start;
      change.to = 0;
      return true;
    }
    if (message.event == UFFD_EVENT_REMAP) {
      change.kind = Kind::kMoved;
      change.start = message.arg.remap.from;
      change.length = message.arg.remap.len;
      change.to = message.arg.remap.to;
      return true;
    }
    // Nothing else was asked for.
  }
}

}  // namespace clan::nic
