#include "nic/page_pinner.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "clan/detail/fork_lock.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace clan::nic {
namespace {

constexpr std::size_t kPiece = 256;  // pages that one mincore checks
constexpr int kPopulateAttempts = 8;

void* address_of(std::uint64_t page) {
  return reinterpret_cast<void*>(page * PagePinner::page_size());
}

int populate(std::uint64_t page, std::uint64_t pages, PageAccess access) {
  int advice = access == PageAccess::kWrite ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  for (int attempt = 0;; ++attempt) {
    if (::madvise(address_of(page), pages * PagePinner::page_size(), advice) == 0) return 0;
    if ((errno != EINTR && errno != EAGAIN) || attempt == kPopulateAttempts) return errno;
  }
}

// Counts each page's locks: open addressing, linear probing, fixed size, as it must not allocate
// while threads wait for the driver. Forgotten pages change generation: late unpins do nothing.
class LockTable {
 public:
  struct Slot {
    std::uint64_t page = 0;
    std::uint64_t generation = 0;
    std::uint64_t count = 0;  // 0 = free
  };

  Slot* find(std::uint64_t page) {
    for (std::size_t i = home(page); slots_[i].count != 0; i = next(i)) {
      if (slots_[i].page == page) return &slots_[i];
    }
    return nullptr;
  }

  bool has_room_for(std::size_t pages) const { return used_ + pages <= kCapacity / 2; }

  Slot& add(std::uint64_t page) {
    std::size_t i = home(page);
    while (slots_[i].count != 0) i = next(i);
    slots_[i] = {page, ++last_generation_, 0};
    ++used_;
    return slots_[i];
  }

  // Closes the gap, so that every page stays reachable from its home.
  void erase(Slot* slot) {
    auto gap = static_cast<std::size_t>(slot - slots_.data());
    slots_[gap].count = 0;
    --used_;
    for (std::size_t i = next(gap); slots_[i].count != 0; i = next(i)) {
      std::size_t distance_home = (i - home(slots_[i].page)) & (kCapacity - 1);
      std::size_t distance_gap = (i - gap) & (kCapacity - 1);
      if (distance_home < distance_gap) continue;
      slots_[gap] = slots_[i];
      slots_[i].count = 0;
      gap = i;
    }
  }

  std::size_t used() const { return used_; }

  // For a child: no page is locked, but what it inherited of its parent's tokens is stale.
  void start_over_from(const LockTable& parent) {
    users = parent.users;
    last_generation_ = parent.last_generation_;
  }

  std::size_t users = 0;

 private:
  static constexpr std::size_t kCapacity = std::size_t{1} << 17;
  static std::size_t home(std::uint64_t page) {
    return static_cast<std::size_t>((page * 0x9E3779B97F4A7C15u) >> (64 - 17));
  }
  static std::size_t next(std::size_t i) { return (i + 1) & (kCapacity - 1); }

  std::array<Slot, kCapacity> slots_;
  std::size_t used_ = 0;
  std::uint64_t last_generation_ = 0;
};

// One per process, as munlock is, while there is a PagePinner that locks. Held over fork: the child
// has no page locks and starts empty.
constinit std::mutex table_mutex;
constinit LockTable* table = nullptr;

// Zeroed and untouched until used, unlike what new would give.
LockTable* map_table() {
  void* memory = ::mmap(nullptr, sizeof(LockTable), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<LockTable*>(memory);
}

void start_pinner_over_in_child() {
  if (table == nullptr) return;
  LockTable* parents = table;
  table = map_table();
  if (table != nullptr) table->start_over_from(*parents);
  ::munmap(parents, sizeof(LockTable));
}

bool populate_is_known() {
  long probe = 0;
  std::uint64_t page = reinterpret_cast<std::uintptr_t>(&probe) / PagePinner::page_size();
  return populate(page, 1, PageAccess::kRead) == 0;
}

}  // namespace
std::size_t PagePinner::page_size() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

Result<std::unique_ptr<PagePinner>> PagePinner::create(const Options& options) {
  if (!populate_is_known()) return Error{ENOSYS, "page pinner: madvise(MADV_POPULATE_READ)"};
  if (options.mode == Mode::kLock) {
    if (!hold_over_forks<table_mutex, start_pinner_over_in_child>()) {
      return Error{ENOMEM, "page pinner: pthread_atfork"};
    }
    std::lock_guard lock(table_mutex);
    if (table == nullptr) table = map_table();
    if (table == nullptr) return Error{ENOMEM, "page pinner: table of locked pages"};
    ++table->users;
  }
  auto* pinner = new (std::nothrow) PagePinner(options);
  if (pinner == nullptr) return Error{ENOMEM, "page pinner"};
  return std::unique_ptr<PagePinner>(pinner);
}

PagePinner::~PagePinner() {
  if (options_.mode != Mode::kLock) return;
  std::lock_guard lock(table_mutex);
  if (table != nullptr && --table->users == 0) {
    ::munmap(table, sizeof(LockTable));
    table = nullptr;
  }
}

std::size_t PagePinner::locked_pages() {
  std::lock_guard lock(table_mutex);
  return table == nullptr ? 0 : table->used();
}

PinResult PagePinner::pin(AddressSpaceId asid, std::uint64_t page, PageAccess access,
                          std::span<PinnedPage> out) {
  // Before anything is checked: what changes from here on is reported.
  const bool is_watched = watch(page * page_size(), out.size() * page_size());
  const bool transient = !options_.unmaps_are_reported && !is_watched;
  for (std::size_t done = 0; done < out.size();) {
    std::size_t piece = std::min(kPiece, out.size() - done);
    PinResult result = pin_piece(page + done, access, out.subspan(done, piece), transient);
    if (result.outcome != PinOutcome::kPinned) {
      for (std::size_t i = 0; i < done; ++i) unpin(asid, page + i, out[i].token);
      result.index += done;
      if (result.outcome == PinOutcome::kOverLimit) {
        for (std::size_t i = 0; i < out.size(); ++i) {
          out[i] = {(page + i) * page_size(), 0, access == PageAccess::kWrite, transient};
        }
      }
      return result;
    }
    done += piece;
  }
  // The mapping may have gone meanwhile, and another be there that nobody watches.
  if (is_watched && !options_.unmaps_are_reported && !options_.monitor->is_current(watched_)) {
    for (PinnedPage& one : out) one.transient = true;
  }
  return {PinOutcome::kPinned, 0};
}

bool PagePinner::watch(std::uint64_t start, std::uint64_t length) {
  if (options_.monitor == nullptr) return false;
  // Not for a file's: shmdt() is not reported, and another mapping may be there.
  if (watched_.anonymous && watched_.covers(start, length) &&
      options_.monitor->is_current(watched_))
    return true;
  const auto watched = options_.monitor->watch(start, length);
  watched_ = watched ? *watched : UnmapMonitor::Watched{};
  return watched_.end != 0;
}

bool PagePinner::is_never_waited_for(std::uint64_t page, std::size_t pages) const {
  constexpr std::uint64_t kSwapped = std::uint64_t{1} << 62;
  if (!watched_.anonymous || !watched_.covers(page * page_size(), pages * page_size()))
    return false;
  std::array<std::uint64_t, kPiece> entries;
  const std::size_t bytes = pages * sizeof entries[0];
  return ::pread(options_.monitor->pagemap(), entries.data(), bytes,
                 static_cast<off_t>(page * sizeof entries[0])) == static_cast<ssize_t>(bytes) &&
         std::none_of(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(pages),
                      [](std::uint64_t entry) { return (entry & kSwapped) != 0; });
}

PinResult PagePinner::pin_piece(std::uint64_t page, PageAccess access, std::span<PinnedPage> out,
                                bool transient) {
  std::size_t pages = out.size();
  if (!is_never_waited_for(page, pages)) {
    std::array<unsigned char, kPiece> present;
    if (::mincore(address_of(page), pages * page_size(), present.data()) != 0) {
      std::size_t bad = 0;
      while (bad + 1 < pages &&
             ::mincore(address_of(page + bad), page_size(), present.data()) == 0) {
        ++bad;
      }
      return {PinOutcome::kFault, bad};
    }
    for (std::size_t i = 0; i < pages; ++i) {
      if ((present[i] & 1) != 0) continue;
      return {defer(page + i, pages - i, access) ? PinOutcome::kNotResident : PinOutcome::kFault,
              i};
    }
  }
  if (int error = populate(page, pages, access); error == EAGAIN || error == EINTR) {
    return {PinOutcome::kNotResident, 0};
  } else if (error != 0) {
    std::size_t bad = 0;
    while (bad + 1 < pages && populate(page + bad, 1, access) == 0) ++bad;
    return {PinOutcome::kFault, bad};
  }
  for (std::size_t i = 0; i < pages; ++i) {
    out[i] = {(page + i) * page_size(), 0, access == PageAccess::kWrite, transient};
  }
  if (options_.mode == Mode::kPopulate) return {PinOutcome::kPinned, 0};

  std::lock_guard lock(table_mutex);
  if (table == nullptr || !table->has_room_for(pages)) return {PinOutcome::kOverLimit, 0};
  bool all_locked = true;
  for (std::size_t i = 0; i < pages && all_locked; ++i) {
    all_locked = table->find(page + i) != nullptr;
  }
  // ENOMEM, EAGAIN, EPERM: RLIMIT_MEMLOCK, or no more mappings.
  if (!all_locked && ::mlock(address_of(page), pages * page_size()) != 0) {
    for (std::size_t i = 0; i < pages; ++i) {
      if (table->find(page + i) == nullptr) ::munlock(address_of(page + i), page_size());
    }
    return {PinOutcome::kOverLimit, 0};
  }
  for (std::size_t i = 0; i < pages; ++i) {
    LockTable::Slot* slot = table->find(page + i);
    if (slot == nullptr) slot = &table->add(page + i);
    ++slot->count;
    out[i].token = slot->generation;
  }
  return {PinOutcome::kPinned, 0};
}

void PagePinner::unpin(AddressSpaceId, std::uint64_t page, std::uint64_t token) {
  if (options_.mode != Mode::kLock) return;
  std::lock_guard lock(table_mutex);
  LockTable::Slot* slot = table == nullptr ? nullptr : table->find(page);
  if (slot == nullptr || slot->generation != token) return;
  if (--slot->count != 0) return;
  table->erase(slot);
  ::munlock(address_of(page), page_size());
}

void PagePinner::forget(AddressSpaceId, std::uint64_t page, std::uint64_t token) {
  if (options_.mode != Mode::kLock) return;
  std::lock_guard lock(table_mutex);
  LockTable::Slot* slot = table == nullptr ? nullptr : table->find(page);
  if (slot != nullptr && slot->generation == token) table->erase(slot);
}

void PagePinner::moved(std::uint64_t from, std::uint64_t to, std::uint64_t length) {
  if (options_.mode != Mode::kLock) return;
  std::uint64_t first = from / page_size();
  std::uint64_t pages = length / page_size();
  std::lock_guard lock(table_mutex);
  for (std::uint64_t i = 0; table != nullptr && i < pages; ++i) {
    if (table->find(first + i) == nullptr) continue;
    ::munlock(address_of(to / page_size() + i), page_size());
  }
}

// ---- what is not resident ----

bool PagePinner::defer(std::uint64_t page, std::uint64_t pages, PageAccess access) {
  std::lock_guard lock(mutex_);
  Deferred* place = nullptr;
  for (Deferred& entry : deferred_) {
    bool covers = entry.page <= page && page - entry.page < entry.pages;
    if (entry.state == State::kFailed && covers) {
      entry.state = State::kFree;
      return false;
    }
    if (entry.state == State::kPending && covers && entry.access >= access) {
      entry.pages = std::max(entry.pages, page + pages - entry.page);
      return true;
    }
    if (entry.state == State::kRunning && covers) return true;
    bool usable = entry.state == State::kFree || entry.state == State::kFailed;
    if (usable && (place == nullptr || place->state == State::kFailed)) place = &entry;
  }
  // No place: not remembered, and so deferred again at the next attempt.
  if (place == nullptr) return true;
  *place = {page, pages, access, State::kPending};
  pending_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

std::size_t PagePinner::resolve_deferred() {
  std::size_t resolved = 0;
  std::unique_lock lock(mutex_);
  for (Deferred& entry : deferred_) {
    if (entry.state != State::kPending) continue;
    entry.state = State::kRunning;
    Deferred work = entry;
    pending_.fetch_sub(1, std::memory_order_relaxed);
    lock.unlock();
    int error = populate(work.page, work.pages, work.access);
    lock.lock();
    entry.state = error == 0 || error == EAGAIN || error == EINTR ? State::kFree : State::kFailed;
    ++resolved;
  }
  return resolved;
}

}  // namespace clan::nic
