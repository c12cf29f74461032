// PagePinner: the Pinner of this process's own memory: the kernel's side of a NIC that runs in it.
//
// pin() never waits for a page: mincore() says what is present; what is not is put on a list, and
// a thread that has time (the driver thread between rounds, or a thread of its own) calls
// resolve_deferred(), which takes the page faults off the data path. Anonymous memory that has not
// been swapped out (/proc/self/pagemap) waits for nothing, so pin() has it filled with zeros.
// Rights are checked by the kernel itself (MADV_POPULATE_READ/WRITE, Linux 5.14): a write
// translation is a write by the process, copy-on-write included. A page's address for the NIC is
// its virtual address.
//
// Two ways to hold a page:
//   kLock      mlock. Stays resident. But the application can tell: it counts against its
//              RLIMIT_MEMLOCK, splits mappings (vm.max_map_count), its own mlock on the same page
//              ends with ours, and madvise(DONTNEED or FREE) on it fails with EINVAL.
//   kPopulate  present when translated, then the kernel's to page out: a transfer that meets a page
//              gone takes a page fault. Invisible to the application. What a NIC inside an
//              unmodified program should use.
// munlock does not count, so locks are counted per page in a table shared by all PagePinners of the
// process.
//
// pin, unpin, forget: any thread (the lock of the Tlb that calls is enough). resolve_deferred: any
// one thread at a time, without that lock. Nothing allocates memory after create(). After fork, the
// child makes a PagePinner of its own.
#pragma once

#include <clan/tlb.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "clan/result.h"
#include "nic/unmap_monitor.h"

namespace clan::nic {

class PagePinner final : public Pinner {
 public:
  enum class Mode : std::uint8_t { kLock, kPopulate };

  struct Options {
    Mode mode = Mode::kPopulate;
    /// Watches every page pinned. Must outlive the pinner.
    UnmapMonitor* monitor = nullptr;
    /// Without a monitor: somebody else (an interposed munmap) calls Tlb::invalidate() for every
    /// change of mapping. With neither, no entry outlives its transfer.
    bool unmaps_are_reported = false;
  };

  /// ENOSYS before Linux 5.14.
  static Result<std::unique_ptr<PagePinner>> create(const Options& options);
  ~PagePinner() override;
  PagePinner(const PagePinner&) = delete;
  PagePinner& operator=(const PagePinner&) = delete;

  /// What TlbConfig::page_size must be.
  static std::size_t page_size();

  PinResult pin(AddressSpaceId asid, std::uint64_t page, PageAccess access,
                std::span<PinnedPage> out) override;
  void unpin(AddressSpaceId asid, std::uint64_t page, std::uint64_t token) override;
  void forget(AddressSpaceId asid, std::uint64_t page, std::uint64_t token) override;

  /// mremap took locked pages along: unlocks them where they are now. Call it before the Tlb
  /// forgets the range.
  void moved(std::uint64_t from, std::uint64_t to, std::uint64_t length);

  bool has_deferred() const { return pending_.load(std::memory_order_relaxed) != 0; }

  /// Takes the page faults that pin() put off. Returns how many runs it dealt with. May block for
  /// as long as the disk does.
  std::size_t resolve_deferred();

  /// Pages locked in this process, by all its PagePinners.
  static std::size_t locked_pages();

 private:
  enum class State : std::uint8_t { kFree, kPending, kRunning, kFailed };
  struct Deferred {
    std::uint64_t page = 0;
    std::uint64_t pages = 0;
    PageAccess access = PageAccess::kRead;
    State state = State::kFree;
  };
  static constexpr std::size_t kMostDeferred = 64;

  explicit PagePinner(const Options& options) : options_(options) {}
  /// False when the last attempt at it failed: the page can't be had.
  bool defer(std::uint64_t page, std::uint64_t pages, PageAccess access);
  /// Whether the events of the range are reported. Asks the monitor once for a mapping.
  bool watch(std::uint64_t start, std::uint64_t length);
  /// Whether the range is anonymous memory of which nothing has been swapped out.
  bool is_never_waited_for(std::uint64_t page, std::size_t pages) const;
  PinResult pin_piece(std::uint64_t page, PageAccess access, std::span<PinnedPage> out,
                      bool transient);

  const Options options_;
  UnmapMonitor::Watched watched_;  // under the lock of the Tlb that calls
  std::mutex mutex_;               // guards deferred_
  std::array<Deferred, kMostDeferred> deferred_{};
  std::atomic<std::size_t> pending_{0};  // relaxed: a hint
};

}  // namespace clan::nic
