// UnmapMonitor: the kernel tells the NIC when the application changes its mappings.
//
// A translation is only as good as the mapping it was made from. userfaultfd reports munmap, a mmap
// over an old mapping, mremap and madvise(DONTNEED) of the ranges watched; no page fault is ever
// taken from the application. Needs no privilege (UFFD_USER_MODE_ONLY, no fork events).
//
//   application thread                  thread that processes events
//   munmap(x)
//     mapping is gone
//     sleeps until the event is read
//                                       process_events(): reads the event ...
//   munmap returns                        ... invalidates x in the Tlb
//
// nic/unmap_watch.h shows what a NIC does about the time in between.
//
// Rules for the thread that calls process_events():
// - It frees sleeping application threads, so nothing it does may need one of them. From beginning
//   to end it never allocates, frees or unmaps memory: what lies beside watched memory is watched
//   too, and nobody would read the event that it waits for itself. Nor does it wait for a lock
//   under which somebody else allocates, frees or unmaps, the lock of the Tlb included: a thread
//   sleeping in munmap may hold malloc's lock. Tlb and PagePinner keep to that. A driver that can't
//   promise it gives the monitor a thread of its own; a process that has no such thread can't have
//   a monitor.
// - It goes on as long as the monitor is open, and close()s it before it ends. That frees all
//   sleepers; the Tlb must then forget all it has.
//
// After fork the child has no monitor (available() is false, the descriptor is closed) and its
// mappings are watched by nobody. Memory that the application itself gave to another userfaultfd,
// or that the kernel can't watch (files on disk), fails in watch(): do not keep entries for it.
#pragma once

#include <linux/userfaultfd.h>

#include <cstddef>
#include <cstdint>

#include "base/fd.h"
#include "clan/result.h"

namespace clan::nic {

class UnmapMonitor {
 public:
  enum class Kind : std::uint8_t {
    kUnmapped,  ///< munmap, or mapped over
    kMoved,     ///< mremap: what was at `start` is now at `to`
    kEmptied,   ///< madvise: still mapped, contents gone. Told before it happens.
  };
  struct Change {
    Kind kind = Kind::kUnmapped;
    std::uint64_t start = 0;
    std::uint64_t length = 0;
    std::uint64_t to = 0;
  };

  /// Always gives a monitor; available() says whether it works, why_not() what was refused.
  static UnmapMonitor open();

  UnmapMonitor(UnmapMonitor&& other) noexcept;
  UnmapMonitor& operator=(UnmapMonitor&& other) = delete;
  ~UnmapMonitor();

  bool available() const;

  /// Ends it: nothing is watched any more. Under the lock, by the thread that processes events.
  void close();

  Error why_not() const { return why_not_; }

  /// Readable when there are events. For the driver's epoll.
  int fd() const { return available() ? fd_.get() : -1; }

  /// Asks for the events of a page-aligned range. Watching twice is no error. What is watched is
  /// the whole mapping around it where the kernel can tell (Linux 6.11): a mapping watched in part
  /// is two, and the application's mremap across both would fail with EFAULT.
  Status watch(std::uint64_t start, std::uint64_t length);

  /// Reads all events there are and hands each to `on_change(const Change&)`. Returns how many.
  template <typename OnChange>
  std::size_t process_events(OnChange&& on_change) {
    std::size_t count = 0;
    Change change;
    while (read_event(change)) {
      on_change(static_cast<const Change&>(change));
      ++count;
    }
    return count;
  }

 private:
  UnmapMonitor() = default;
  bool read_event(Change& change);

  Fd fd_;
  Fd maps_;  // /proc/self/maps, to ask for the extent of a mapping
  Error why_not_{0, ""};
  int slot_ = -1;  // in the table of descriptors a forked child closes
  unsigned fork_generation_ = 0;
};

}  // namespace clan::nic
