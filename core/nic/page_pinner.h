// PagePinner: the Pinner of this process's own memory: the kernel's side of a NIC that runs in it.
//
// pin() never waits for a page: mincore() says what is present; the rest is listed for
// resolve_deferred(), called by a thread that has time, which takes the page faults off the data
// path. Anonymous memory that was not swapped out (/proc/self/pagemap) waits for nothing: pin() has
// it filled with zeros. The kernel checks rights (MADV_POPULATE_READ/WRITE, Linux 5.14): a write
// translation is a write, copy-on-write included. A page's NIC address is its virtual address.
//
// Two ways to hold a page:
//   kLock      mlock. Stays resident. The application can tell: it counts against RLIMIT_MEMLOCK,
//              splits mappings (vm.max_map_count), its own mlock of the page ends with ours, and
//              madvise(DONTNEED or FREE) there fails with EINVAL.
//   kPopulate  present when translated, then the kernel's to page out: a transfer may take a page
//              fault. Invisible to the application: for a NIC inside an unmodified program.
// munlock does not count, so all PagePinners of the process share a table of locks.
//
// pin, unpin, forget: any thread, under the Tlb's lock. resolve_deferred: one thread at a time,
// without it. Nothing allocates after create(). After fork the child makes its own.
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
    /// Without a monitor: whether somebody calls Tlb::invalidate() for every change of mapping.
    /// With neither, entries go with their transfers.
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

  /// mremap took locked pages along: unlocks them there. Call before the Tlb forgets the range.
  void moved(std::uint64_t from, std::uint64_t to, std::uint64_t length);

  bool has_deferred() const { return pending_.load(std::memory_order_relaxed) != 0; }

  /// Takes the page faults that pin() put off; may block on the disk. Returns how many runs it did.
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
