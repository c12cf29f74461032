#include "state/kept_pipes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "clan/pipe.h"
#include "clan/socket_face.h"
#include "os/signals.h"
#include "os/spin_lock.h"
#include "os/sys.h"
#include "state/internal_fds.h"
#include "state/socket.h"

namespace clan::preload {
namespace {

constexpr int kMost = 16;

constinit std::atomic<int> count{0};  ///< written under the lock

struct Kept {
  const PipePage* page = nullptr;  ///< null: free
  int memfd = -1;
  int end = 0;
  std::uint64_t inode = 0;
  std::uint64_t since = 0;

  // By its inode, as the program may have closed that number and got it again.
  bool is_here() const {
    struct stat about {};
    return sys::fstat(memfd, &about) == 0 && about.st_ino == inode;
  }
  void drop() {
    if (is_here()) sys::close(memfd);
    sys::munmap(const_cast<PipePage*>(page), sizeof(PipePage));
    page = nullptr;
    count.fetch_sub(1, std::memory_order_relaxed);  // relaxed: a hint to those without the lock
  }
  bool is_wanted() const {
    // relaxed: a count, by which nothing else is published
    return page->ends[end].face.words[socket_face::kHolders].load(std::memory_order_relaxed) != 0;
  }
};

// Never waited for: another thread may have had it when this process was forked.
constinit SpinLock lock;
constinit Kept kept[kMost];
constinit std::uint64_t number = 0;

void sweep() {
  for (Kept& k : kept) {
    if (k.page != nullptr && !k.is_wanted()) k.drop();
  }
}

Kept& oldest() {
  Kept* found = &kept[0];
  for (Kept& k : kept) {
    if (k.page == nullptr) return k;
    if (k.since < found->since) found = &k;
  }
  found->drop();
  return *found;
}

}  // namespace

void keep_for_receivers(const Socket& s) {
  KeepErrno keep;
  const Undisturbed undisturbed;
  std::unique_lock guard(lock, std::try_to_lock);
  if (!guard.owns_lock()) return;
  sweep();
  // relaxed: as above
  if (s.mine().words[socket_face::kHolders].load(std::memory_order_relaxed) < 2 || s.pipe.memfd() < 0) return;
  const int memfd = move_high(static_cast<int>(sys::fcntl(s.pipe.memfd(), F_DUPFD_CLOEXEC, 0)));
  if (memfd < 0) return;
  void* page = sys::mmap(nullptr, sizeof(PipePage), PROT_READ, MAP_SHARED, memfd, 0);
  if (page == MAP_FAILED) {
    sys::close(memfd);
    return;
  }
  oldest() = {static_cast<const PipePage*>(page), memfd, s.pipe.end(), s.pipe.inode(), ++number};
  count.fetch_add(1, std::memory_order_relaxed);  // relaxed: as above
}

void sweep_kept() {
  if (kept_pipes() == 0) return;
  KeepErrno keep;
  const Undisturbed undisturbed;
  std::unique_lock guard(lock, std::try_to_lock);
  if (guard.owns_lock()) sweep();
}

int close_kept(unsigned first, unsigned last, bool already_closed) {
  const Undisturbed undisturbed;
  std::unique_lock guard(lock, std::try_to_lock);
  if (!guard.owns_lock()) return 0;
  int closed = 0;
  for (Kept& k : kept) {
    if (k.page == nullptr || static_cast<unsigned>(k.memfd) < first || static_cast<unsigned>(k.memfd) > last) {
      continue;
    }
    if (already_closed) k.inode = 0;
    k.drop();
    ++closed;
  }
  return closed;
}

int kept_pipes() { return count.load(std::memory_order_relaxed); }  // relaxed: a hint

}  // namespace clan::preload
