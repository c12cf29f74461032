#include "table/slot_table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>

#include "clan/detail/dekker.h"
#include "clan/face/reasons.h"
#include "kernel/proc.h"
#include "os/config.h"
#include "os/memory_owner.h"
#include "os/sandbox.h"
#include "os/sys.h"
#include "table/internal_fds.h"

namespace clan::preload {
namespace {

using reasons::kBytes;

constexpr std::size_t kSlots = reasons::kSlotBytes / sizeof(OpenFileState);
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

std::atomic<OpenFileState*> own{nullptr};  ///< the table of this process's new slots
bool is_own(const OpenFileState& slot) {
  const OpenFileState* first = own.load(std::memory_order_acquire);  // PAIR preload.slots
  return first != nullptr && &slot >= first && &slot < first + kSlots;
}

// Shared by sockets without a slot in a table. Nobody moves those.
constinit OpenFileState pinned_slot;

// A stack of slots of our table that this process gave back. A child has a copy, but
// OpenFileState::held says whether a process has a slot.
std::uint32_t returned[kSlots];
std::size_t returned_count = 0;
std::size_t without_scan = 0;  ///< takes until the next scan of all slots
bool fork_is_under_way = false;

// The first slot of a table is a header: `cookie` is the file's magic, `sent` the number of slots
// used so far. The others have no memory, so nobody reads them.
constexpr std::uint64_t kMagic = 0x3173746f6c732d63;  // "c-slots1"
std::size_t in_use(const OpenFileState* table) {
  // relaxed: a slot is published by its name
  return std::min<std::size_t>(1 + table->sent.load(std::memory_order_relaxed), kSlots);
}

OpenFileState* map_table(int memfd) {
  void* memory =
      sys::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memfd, 0);
  return memory != MAP_FAILED ? static_cast<OpenFileState*>(memory) : nullptr;
}

OpenFileState* own_table() {
  OpenFileState* table = own.load(std::memory_order_acquire);  // PAIR preload.slots
  if (table != nullptr) return table;
  const int memfd = static_cast<int>(
      sys::call(SYS_memfd_create, reasons::kMemfdName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memfd < 0) return nullptr;
  OpenFileState* made =
      sys::call(SYS_ftruncate, memfd, kBytes) == 0 && sys::fcntl(memfd, F_ADD_SEALS, kSeals) == 0
          ? map_table(memfd)
          : nullptr;
  // relaxed: published next
  if (made != nullptr) made->cookie.store(kMagic, std::memory_order_relaxed);
  // PAIR preload.slots: publishes zeroed slots
  if (made != nullptr && own.compare_exchange_strong(table, made, std::memory_order_acq_rel)) {
    // relaxed: a number alone. It stays open, for receivers to find
    passing_memfd.store(move_high(memfd), std::memory_order_relaxed);
    return made;
  }
  if (made != nullptr) sys::munmap(made, kBytes);
  sys::close(memfd);
  return table;
}

// Takes a slot that nobody has: its users have closed it, and their calls are over. `also_lost`:
// even if descriptors are in transit, which may never be received.
bool take(OpenFileState& slot, bool also_lost) {
  // PAIR preload.held: which life it is
  std::uint64_t held = dekker::load(slot.held);
  if (OpenFileState::users(held) != 0 || (OpenFileState::on_its_way(held) != 0 && !also_lost))
    return false;
  // PAIR preload.gate: sees what calls have done
  if (slot.sends.load(std::memory_order_seq_cst) != 0 ||
      slot.receives.load(std::memory_order_seq_cst) != 0)
    return false;
  // PAIR preload.held: nobody has taken it since
  if (!dekker::cas(slot.held, held, OpenFileState::renewed(held))) return false;
  // PAIR preload.slot_name: it is nobody's
  slot.cookie.store(0, std::memory_order_seq_cst);
  slot.renew();
  return true;
}

OpenFileState* find_in(OpenFileState* slots, const SocketIdentity& wanted) {
  const std::size_t count = slots != nullptr ? in_use(slots) : 0;
  for (std::size_t i = 1; i < count; ++i) {
    const OpenFileState& slot = slots[i];
    // PAIR preload.slot_name: sees the rest of the name
    if (slot.cookie.load(std::memory_order_acquire) == wanted.cookie &&
        // relaxed: behind the cookie
        slot.inode.load(std::memory_order_relaxed) == wanted.inode &&
        slot.pids.load(std::memory_order_relaxed) == sys::pid_namespace()) {
      return slots + i;
    }
  }
  return nullptr;
}

bool is_slot_table(int memfd) {
  struct stat about {};
  std::uint64_t magic = 0;
  return sys::fstat(memfd, &about) == 0 && about.st_size == static_cast<off_t>(kBytes) &&
         (about.st_uid == 0 || config().allows_uid(about.st_uid)) &&
         (sys::fcntl(memfd, F_GET_SEALS) & kSeals) == kSeals &&
         sys::call(SYS_pread64, memfd, &magic, sizeof magic, offsetof(OpenFileState, cookie)) ==
             sizeof magic &&
         magic == kMagic;
}

// Keeps only the page of the found slot mapped, until drop_slot().
constexpr std::uintptr_t kPage = 4096;
OpenFileState* find_in_memfd(int memfd, const SocketIdentity& wanted) {
  OpenFileState* const table = is_slot_table(memfd) ? map_table(memfd) : nullptr;
  if (table == nullptr) return nullptr;
  auto* const begin = reinterpret_cast<std::byte*>(table);
  OpenFileState* const found = find_in(table, wanted);
  if (found == nullptr) return sys::munmap(begin, kBytes), nullptr;
  std::byte* const page = begin + (reinterpret_cast<std::byte*>(found) - begin) / kPage * kPage;
  const auto before = static_cast<std::size_t>(page - begin);
  if (before > 0) sys::munmap(begin, before);
  sys::munmap(page + kPage, kBytes - before - kPage);
  return found;
}

}  // namespace

bool identify(int fd, SocketIdentity* id) {
  struct stat socket {};
  socklen_t size = sizeof id->cookie;
  if (sys::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &id->cookie, &size) != 0 || id->cookie == 0)
    return false;
  if (sys::fstat(fd, &socket) != 0) return false;
  id->inode = socket.st_ino;
  return true;
}

bool name_slot(int fd, OpenFileState& slot) {
  SocketIdentity id;
  if (!identify(fd, &id)) return false;
  slot.inode.store(id.inode, std::memory_order_relaxed);  // relaxed: published by the cookie
  // PAIR preload.slot_name: the slot is this socket's
  slot.cookie.store(id.cookie, std::memory_order_release);
  return true;
}

bool has_table() {
  return own.load(std::memory_order_acquire) != nullptr;  // PAIR preload.slots
}

std::atomic<std::uint64_t>* reason_words() {
  OpenFileState* table = own_table();
  return table != nullptr ? reinterpret_cast<std::atomic<std::uint64_t>*>(table + kSlots) : nullptr;
}

OpenFileState* take_slot() {
  constexpr std::size_t kTakesWithoutScan = 4096;
  pinned_slot.pinned.store(1, std::memory_order_relaxed);  // relaxed: always the same
  if (fork_is_under_way) return &pinned_slot;
  // In borrowed memory a new descriptor would not be the lender's.
  const bool may_make = !config().disabled && permits_memory() && !in_borrowed_memory();
  OpenFileState* const table = has_table() || may_make ? own_table() : nullptr;
  while (table != nullptr && returned_count > 0) {
    if (OpenFileState& slot = table[returned[--returned_count]]; take(slot, false)) return &slot;
  }
  while (table != nullptr && in_use(table) < kSlots) {
    // relaxed: a count
    const std::uint64_t at = 1 + table->sent.fetch_add(1, std::memory_order_relaxed);
    if (at < kSlots && take(table[at], false)) return table + at;
  }
  // Other processes may have given some back, or died.
  const bool scans = table != nullptr && without_scan == 0;
  for (std::size_t i = 1; scans && i < kSlots; ++i) {
    if (take(table[i], true)) return table + i;
  }
  without_scan = scans ? kTakesWithoutScan : without_scan - std::min<std::size_t>(without_scan, 1);
  return &pinned_slot;
}

void give_no_slots(bool until_fork_is_over) { fork_is_under_way = until_fork_is_over; }
bool gives_slots() { return !fork_is_under_way; }

void give_back_slot(OpenFileState* slot) {
  if (slot == nullptr || slot == &pinned_slot) return;
  if (!is_own(*slot)) return drop_slot(slot);
  // relaxed: checked again when it is taken
  if (OpenFileState::users(slot->held.load(std::memory_order_relaxed)) != 0) return;
  if (returned_count == kSlots) return;
  // PAIR preload.slots
  returned[returned_count++] =
      static_cast<std::uint32_t>(slot - own.load(std::memory_order_acquire));
}

void drop_slot(OpenFileState* slot) {
  if (slot == nullptr || is_own(*slot)) return;
  auto* const at = reinterpret_cast<std::byte*>(slot);
  sys::munmap(at - reinterpret_cast<std::uintptr_t>(at) % kPage, kPage);
}

bool is_in_a_table(const OpenFileState& slot) { return &slot != &pinned_slot; }

OpenFileState* find_slot(const SocketIdentity& id, pid_t hint) {
  // PAIR preload.slots
  OpenFileState* found = find_in(own.load(std::memory_order_acquire), id);
  if (found != nullptr || !sys::proc_is_ours()) return found;
  const auto is_there = [&](const char* pid) {
    return any_memfd_of(pid, reasons::kMemfdLink, [&](int memfd) {
      found = find_in_memfd(memfd, id);
      sys::close(memfd);
      return found != nullptr;
    });
  };
  for (const pid_t one : {hint, static_cast<pid_t>(sys::call(SYS_getppid))}) {
    char pid[16];
    std::snprintf(pid, sizeof pid, "%d", static_cast<int>(one));
    if (one > 0 && is_there(pid)) return found;
  }
  (void)any_process(is_there);
  return found;
}

}  // namespace clan::preload
