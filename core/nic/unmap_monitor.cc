#include "nic/unmap_monitor.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clan/detail/fork_lock.h"

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
  std::uint64_t more[3] = {};  // what else it can be asked for, and is not
  std::uint64_t inode = 0;     // of System V's first segment 0 as well
  std::uint64_t device = 0;    // major and minor number
  std::uint64_t rest[3] = {};
};
static_assert(sizeof(MappingQuery) == 104);
constexpr unsigned long kQueryMapping = _IOWR('f', 17, MappingQuery);

constexpr std::uint64_t kNeeded = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP |
                                  UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_PAGEFAULT_FLAG_WP;
constexpr std::uint64_t kShared = UFFD_FEATURE_WP_HUGETLBFS_SHMEM;  // memfd, shared anonymous

// Held over fork, and while a monitor begins or ends.
constinit std::mutex monitor_mutex;
constinit UnmapMonitor* monitor_of_process = nullptr;
constexpr std::size_t kPage = 4096;

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

// Else a child's copy of the descriptor would keep the parent's ranges registered with nobody to
// read: the parent's next munmap would sleep for ever.
void UnmapMonitor::start_over_in_child() {
  if (monitor_of_process != nullptr) monitor_of_process->close();
  monitor_of_process = nullptr;
}

Result<std::shared_ptr<UnmapMonitor>> UnmapMonitor::get() {
  if (!hold_over_forks<monitor_mutex, start_over_in_child>())
    return Error{ENOMEM, "unmap monitor: pthread_atfork"};
  std::shared_ptr<UnmapMonitor> made;  // goes after the lock, which its destructor takes
  std::unique_lock lock(monitor_mutex);
  while (monitor_of_process != nullptr) {
    if (auto found = monitor_of_process->weak_from_this().lock()) return found;
    lock.unlock();  // its destructor waits for that
    ::sched_yield();
    lock.lock();
  }
  made.reset(new UnmapMonitor);
  if (auto s = made->start(); !s) {
    made->close();
    return s.error();
  }
  monitor_of_process = made.get();
  return made;
}

Status UnmapMonitor::start() {
  Result<Fd> fd = open_userfaultfd(kNeeded | kShared);
  if (!fd && fd.error().err == EINVAL) fd = open_userfaultfd(kNeeded);
  if (!fd) return fd.error();
  fd_ = std::move(*fd);
  maps_ = Fd(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  pagemap_ = Fd(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (::fstat(fd_.get(), &opened_) != 0) return errno_error("userfaultfd: fstat");
  void* const page = ::mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return errno_error("unmap monitor: mmap");
  last_page_ = page;
  if (auto s = watch(reinterpret_cast<std::uintptr_t>(page), kPage); !s) return s.error();
  // The application's signals are the business of its own threads.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  Status started;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::exception&) {
    started = Error{EAGAIN, "no thread to watch unmaps"};
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  return started;
}

UnmapMonitor::~UnmapMonitor() {
  std::lock_guard lock(monitor_mutex);
  if (monitor_of_process == this) monitor_of_process = nullptr;
  const bool ends = available() && thread_.joinable();
  // PAIR unmap.ends: this thread asks nothing of the monitor any more
  words::store_release(ends_, true);
  if (last_page_ != nullptr) ::munmap(last_page_, kPage);
  if (ends) thread_.join();
  if (thread_.joinable()) thread_.detach();  // a child: the thread is its parent's
  close();
}

void UnmapMonitor::run() {
  pthread_setname_np(pthread_self(), "clan-unmaps");
  pollfd event{fd_.get(), POLLIN, 0};
  Change change;
  while (!words::load_acquire(ends_) && is_ours()) {  // PAIR unmap.ends: sees that it may be closed
    if (::poll(&event, 1, -1) < 0) continue;
    // PAIR unmap.rounds: odd before the read that lets an unmap return
    words::add(rounds_, 1u);
    while (is_ours() && read_event(change)) {
      std::lock_guard lock(mutex_);
      for (Listener* l = first_; l != nullptr; l = l->next_) l->on_change(change);
    }
    words::add(rounds_, 1u);  // PAIR unmap.rounds: what was read has been forgotten
  }
  // Closes by itself only at the end: an application thread may be in watch() before that.
  if (words::load_acquire(ends_)) close();  // PAIR unmap.ends: sees that it is to end
  words::add(rounds_, 2u);                  // PAIR unmap.rounds: nothing is watched any more
  std::lock_guard lock(mutex_);
  for (Listener* l = first_; l != nullptr; l = l->next_) l->on_end();
}

bool UnmapMonitor::is_ours() const {
  struct stat now;
  return ::fstat(fd_.get(), &now) == 0 && now.st_ino == opened_.st_ino &&
         now.st_dev == opened_.st_dev;
}

void UnmapMonitor::close() {
  words::add(rounds_, 2u);  // PAIR unmap.rounds: nothing is watched any more
  if (!is_ours()) {
    fd_.release();
    maps_.release();
    pagemap_.release();
  }
  fd_.reset();
  maps_.reset();
  pagemap_.reset();
}

void UnmapMonitor::settle() const {
  const std::uint32_t seen = words::load_acquire(rounds_);  // PAIR unmap.rounds: as in settled()
  if (seen % 2 == 0) return;
  // PAIR unmap.rounds: sees what is undone
  while (words::load_acquire(rounds_) == seen) ::sched_yield();
}

void UnmapMonitor::add(Listener& listener) {
  std::lock_guard lock(mutex_);
  listener.next_ = first_;
  first_ = &listener;
}

void UnmapMonitor::remove(Listener& listener) {
  std::lock_guard lock(mutex_);
  for (Listener** l = &first_; *l != nullptr; l = &(*l)->next_) {
    if (*l != &listener) continue;
    *l = listener.next_;
    return;
  }
}

bool UnmapMonitor::mapping_at(std::uint64_t address, Watched* found) const {
  MappingQuery query;
  query.query_addr = address;
  if (::ioctl(maps_.get(), kQueryMapping, &query) != 0) return false;
  found->start = query.start;
  found->end = query.end;
  found->anonymous = query.inode == 0 && query.device == 0;
  return true;
}

Result<UnmapMonitor::Watched> UnmapMonitor::watch(std::uint64_t start, std::uint64_t length) {
  std::uint64_t end = start + length;
  Watched watched{start, start, words::load_acquire(rounds_)};  // PAIR unmap.rounds: see is_current
  bool has_changed = false;
  while (watched.end < end) {
    const std::uint64_t at = watched.end;
    if (!mapping_at(at, &watched)) watched = {at, end, watched.round};
    uffdio_register request{};
    request.range = {watched.start, watched.end - watched.start};
    // Write-protect mode, and nothing is ever write-protected: events without page faults.
    request.mode = UFFDIO_REGISTER_MODE_WP;
    if (::ioctl(fd_.get(), UFFDIO_REGISTER, &request) != 0)
      return errno_error("userfaultfd: watch");
    // What was unmapped by then is passed over. If one mapping is there now all of it is watched: a
    // watched and an unwatched one never merge.
    Watched now;
    const bool is_whole = mapping_at(watched.start, &now)
                              ? now.start <= watched.start && watched.end <= now.end
                              : errno != ENOENT;  // an older kernel cannot tell
    has_changed = has_changed || !is_whole;
  }
  return has_changed ? Watched{} : watched;
}

bool UnmapMonitor::read_event(Change& change) {
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
