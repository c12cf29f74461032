// UnmapMonitor: tells all that keep translations when the program changes its mappings.
//
// userfaultfd reports munmap, mmap over an old mapping, mremap and madvise(DONTNEED) in watched
// ranges; the program's page faults are its own. Needs no privilege (UFFD_USER_MODE_ONLY, no fork
// events). One per process, as only one can watch a page, with its own thread:
//
//   application thread          thread of the monitor             thread that serves a NIC
//   munmap(x)
//     mapping is gone
//     sleeps                    rounds_ odd
//                               reads the event
//   munmap returns                ... each Listener: forgets x
//   posts a request             rounds_ even                      settle(): until rounds_ is even
//                                                                 look-up: misses
//
// So a request posted after an unmap has returned finds no entry of it. During the unmap another
// thread may get the address, and the entry is of a page that is gone: the NIC, which names memory
// by virtual address, touches what the request asks for all the same.
//
// The monitor's thread frees sleeping threads, so neither it nor a Listener may depend on one. It
// never allocates, frees or unmaps memory: neighbours of watched memory are watched, and it would
// wait for itself. It waits for no lock, also the Tlb's, under which others do: a thread in munmap
// may hold malloc's.
//
// After fork the child has no monitor (available() is false, the descriptor is closed); get() makes
// it one. watch() fails, so keep no entries, for memory that another userfaultfd has or the kernel
// can't watch (files on disk), and once the program has closed the descriptor.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "base/fd.h"
#include "clan/detail/words.h"
#include "clan/result.h"

namespace clan::nic {

class UnmapMonitor : public std::enable_shared_from_this<UnmapMonitor> {
 public:
  enum class Kind : std::uint8_t {
    kUnmapped,  ///< munmap, or mapped over
    kMoved,     ///< mremap: what was at `start` is now at `to`
    kEmptied,   ///< madvise: still mapped, contents gone. Reported before it happens.
  };
  struct Change {
    Kind kind = Kind::kUnmapped;
    std::uint64_t start = 0;
    std::uint64_t length = 0;
    std::uint64_t to = 0;
  };
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void on_change(const Change& change) = 0;
    /// Nothing is watched any more: all entries are to go.
    virtual void on_end() = 0;

   private:
    friend class UnmapMonitor;
    Listener* next_ = nullptr;
  };

  /// That of this process, which lives as long as somebody has it. Fails with what was refused.
  static Result<std::shared_ptr<UnmapMonitor>> get();
  ~UnmapMonitor();
  UnmapMonitor(const UnmapMonitor&) = delete;
  UnmapMonitor& operator=(const UnmapMonitor&) = delete;

  /// False in a forked child, which makes its own.
  bool available() const { return static_cast<bool>(fd_); }

  void add(Listener& listener);
  /// Not called any more when this returns.
  void remove(Listener& listener);

  /// What is watched around an address.
  struct Watched {
    std::uint64_t start = 0;
    std::uint64_t end = 0;
    std::uint32_t round = 1;  ///< of the monitor when this was so
    bool anonymous = false;   ///< no file is behind it: its pages wait for nothing but swap
    bool covers(std::uint64_t from, std::uint64_t length) const {
      return start <= from && from < end && length <= end - from;
    }
  };

  /// Asks for the events of a page-aligned range, once or more often. Watches the whole mapping
  /// around it where the kernel can tell (Linux 6.11): part of one would split it, and mremap
  /// across both fail with EFAULT. Returns the range's last mapping; empty: mappings have changed
  /// meanwhile, and some of it may be unwatched.
  Result<Watched> watch(std::uint64_t start, std::uint64_t length);
  /// Whether it is watched still: no event has been read since.
  bool is_current(const Watched& watched) const {
    // PAIR unmap.rounds: an unmap that is read from here on forgets what is kept after this
    return words::load_acquire(rounds_) == watched.round;
  }

  /// What the kernel says of each page (/proc/self/pagemap). Closed in a forked child.
  int pagemap() const { return pagemap_.get(); }

  /// True: no unmap that this thread may know of is unknown to a Listener.
  bool settled() const {
    // PAIR unmap.rounds: sees that an event has been read, if an unmap has returned for it
    return words::load_acquire(rounds_) % 2 == 0;
  }
  /// Waits for that, without a lock that a Listener takes.
  void settle() const;

 private:
  UnmapMonitor() = default;
  static void start_over_in_child();
  Status start();
  void run();
  /// False: the program has closed the descriptor, and the number may be another file's by now.
  bool is_ours() const;
  /// False: there is none (ENOENT), or the kernel cannot tell.
  bool mapping_at(std::uint64_t address, Watched* found) const;
  bool read_event(Change& change);
  void close();

  Fd fd_;
  struct stat opened_ {};      ///< what fd_ named from the beginning
  Fd maps_;                    ///< /proc/self/maps, to ask for the extent of a mapping
  Fd pagemap_;                 ///< /proc/self/pagemap
  void* last_page_ = nullptr;  ///< watched: its unmap wakes the thread, which then ends
  std::mutex mutex_;           ///< the list; a Listener is called under it
  Listener* first_ = nullptr;
  std::atomic<std::uint32_t> rounds_{0};  ///< odd: events have been read that are not done with
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

}  // namespace clan::nic
