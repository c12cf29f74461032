// UnmapMonitor: tells all that keep translations when the program changes its mappings.
//
// A translation is only as good as the mapping it was made from. userfaultfd reports munmap, a mmap
// over an old mapping, mremap and madvise(DONTNEED) of the ranges watched; no page fault is ever
// taken from the program. Needs no privilege (UFFD_USER_MODE_ONLY, no fork events). There is one
// for the process, as a page can be watched by one only, with a thread of its own:
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
// So a request that is posted after an unmap has returned finds no entry of it. While the unmap is
// under way, another thread may be given the same address: the entry is then that of a page which
// is not there, and the NIC touches what is. As the NIC names memory by virtual addresses, it
// touches what the request asks for all the same.
//
// The monitor's thread frees sleeping application threads, so nothing that it or a Listener does
// may need one of them. It never allocates, frees or unmaps memory: what lies beside watched memory
// is watched too, and nobody would read the event that it waits for itself. Nor does it wait for a
// lock under which somebody else does, the lock of the Tlb included: a thread that sleeps in munmap
// may hold malloc's lock. Tlb and PagePinner keep to that.
//
// After fork the child has no monitor (available() is false, the descriptor is closed) and its
// mappings are watched by nobody; get() makes it one. Memory that the program itself gave to
// another userfaultfd, or that the kernel can't watch (files on disk), fails in watch(): do not
// keep entries for it. So does all memory once the program has closed the monitor's descriptor.
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

  /// Asks for the events of a page-aligned range. Watching twice is no error. What is watched is
  /// the whole mapping around it where the kernel can tell (Linux 6.11): a mapping watched in part
  /// is two, and the program's mremap across both would fail with EFAULT. Returns the last mapping
  /// of the range; an empty one where mappings have changed meanwhile, so that some of the range
  /// may not be watched.
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
