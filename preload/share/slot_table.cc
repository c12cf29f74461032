#include "share/slot_table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "clan/dekker.h"
#include "clan/reasons.h"
#include "os/config.h"
#include "os/proc.h"
#include "os/sys.h"
#include "state/internal_fds.h"
#include "state/open_file.h"
#include "state/socket_identity.h"

namespace clan::preload {
namespace {

using Entry = SlotEntry;

using reasons::kBytes;

constexpr std::size_t kEntries = 512;
static_assert(kEntries * sizeof(Entry) == reasons::kSlotBytes);
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

// Tables that are mapped here: our own, and those of processes that have sent something. Never
// unmapped.
struct Table {
  std::atomic<Entry*> entries{nullptr};
  std::atomic<std::uint64_t> inode{0};
};

constexpr std::size_t kTables = 16;
Table tables[kTables];  // the first is our own

Entry* map_table(int memfd) {
  void* memory = sys::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Entry*>(memory);
}

Entry* own_table() {
  Entry* own = tables[0].entries.load(std::memory_order_acquire);  // PAIR preload.slots
  if (own != nullptr) return own;
  const int memfd = static_cast<int>(
      sys::call(SYS_memfd_create, reasons::kMemfdName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memfd < 0) return nullptr;
  Entry* made =
      sys::call(SYS_ftruncate, memfd, kBytes) == 0 && sys::fcntl(memfd, F_ADD_SEALS, kSeals) == 0
          ? map_table(memfd)
          : nullptr;
  // PAIR preload.slots: publishes zeroed entries
  if (made != nullptr &&
      tables[0].entries.compare_exchange_strong(own, made, std::memory_order_acq_rel)) {
    // relaxed: a number alone
    // stays open, for receivers to find
    passing_memfd.store(move_high(memfd), std::memory_order_relaxed);
    return made;
  }
  if (made != nullptr) sys::munmap(made, kBytes);
  sys::close(memfd);
  return own;
}

// Nobody has it: users that closed it, and calls of theirs that are still under way, are gone.
// `also_lost`: one whose descriptors are all on their way, and may never be received.
bool take(Entry& e, bool also_lost) {
  // PAIR preload.held: which life it is
  std::uint64_t held = dekker::look(e.slot.held);
  if (Slot::users(held) != 0 || (Slot::on_its_way(held) != 0 && !also_lost)) return false;
  // PAIR preload.gate: sees what calls have done
  if (e.slot.sends.load(std::memory_order_seq_cst) != 0 ||
      e.slot.receives.load(std::memory_order_seq_cst) != 0)
    return false;
  // PAIR preload.held: nobody has taken it since
  return dekker::replace(e.slot.held, held, Slot::renewed(held));
}

Entry* find_in(Entry* entries, const SocketIdentity& id) {
  for (std::size_t i = 0; entries != nullptr && i < kEntries; ++i) {
    Entry& e = entries[i];
    // PAIR preload.slot_name: sees the rest of the name
    if (e.cookie.load(std::memory_order_acquire) != id.cookie) continue;
    // relaxed: behind the cookie
    if (e.inode.load(std::memory_order_relaxed) == id.inode &&
        e.pids.load(std::memory_order_relaxed) == id.pids) {
      return &e;
    }
  }
  return nullptr;
}

Entry* find_here(const SocketIdentity& id) {
  for (Table& table : tables) {
    // PAIR preload.slots
    if (Entry* e = find_in(table.entries.load(std::memory_order_acquire), id)) return e;
  }
  return nullptr;
}

// A table that a process has, mapped from now on.
Entry* take_table(int memfd) {
  struct stat about {};
  if (sys::fstat(memfd, &about) != 0 || about.st_size != static_cast<off_t>(kBytes) ||
      (about.st_uid != 0 && !config().allows_uid(about.st_uid)) ||
      (sys::fcntl(memfd, F_GET_SEALS) & kSeals) != kSeals) {
    return nullptr;
  }
  for (std::size_t i = 1; i < kTables; ++i) {
    // relaxed: it says whose the place is; the entries are published by themselves
    std::uint64_t inode = tables[i].inode.load(std::memory_order_relaxed);
    if (inode == about.st_ino) {
      return tables[i].entries.load(std::memory_order_acquire);  // PAIR preload.slots
    }
    // relaxed: likewise
    if (inode != 0 ||
        !tables[i].inode.compare_exchange_strong(inode, about.st_ino, std::memory_order_relaxed)) {
      continue;
    }
    Entry* entries = map_table(memfd);
    tables[i].entries.store(entries, std::memory_order_release);  // PAIR preload.slots
    return entries;
  }
  return nullptr;
}

Entry* find_at(const char* pid, const SocketIdentity& id) {
  char path[40];
  std::snprintf(path, sizeof path, "/proc/%.16s/fd", pid);
  const int directory =
      static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory < 0) return nullptr;
  Entry* found = nullptr;
  DirectoryReader names(directory);
  while (const char* name = found == nullptr ? names.next() : nullptr) {
    if (*name == '.') continue;
    const int memfd = open_memfd_of(static_cast<unsigned>(std::atoi(pid)), std::atoi(name),
                                    reasons::kMemfdLink, O_RDWR);
    if (memfd < 0) continue;
    found = find_in(take_table(memfd), id);
    sys::close(memfd);
  }
  sys::close(directory);
  return found;
}

}  // namespace

bool identify(int fd, SocketIdentity* id) {
  struct stat socket {
  }, pids{};
  socklen_t size = sizeof id->cookie;
  if (sys::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &id->cookie, &size) != 0 || id->cookie == 0)
    return false;
  if (sys::fstat(fd, &socket) != 0 || ::stat("/proc/self/ns/pid", &pids) != 0) return false;
  id->inode = socket.st_ino;
  id->pids = pids.st_ino;
  return true;
}

bool has_findable_table() {
  // relaxed: a number alone
  return own_table() != nullptr && passing_memfd.load(std::memory_order_relaxed) >= 0;
}

bool has_table() {
  return tables[0].entries.load(std::memory_order_acquire) != nullptr;  // PAIR preload.slots
}

std::atomic<std::uint64_t>* reason_words() {
  Entry* own = own_table();
  return own != nullptr ? reinterpret_cast<std::atomic<std::uint64_t>*>(own + kEntries) : nullptr;
}

SlotEntry* new_entry() {
  Entry* table = own_table();
  for (const bool also_lost : {false, true}) {
    for (std::size_t i = 0; table != nullptr && i < kEntries; ++i) {
      if (!take(table[i], also_lost)) continue;
      // PAIR preload.slot_name: it is nobody's
      table[i].cookie.store(0, std::memory_order_seq_cst);
      // relaxed: published with the cookie to come
      table[i].slot.pipe_pid.store(0, std::memory_order_relaxed);
      table[i].slot.pipe_fd.store(-1, std::memory_order_relaxed);
      table[i].slot.pinned.store(0, std::memory_order_relaxed);
      table[i].slot.forget_resent();
      return table + i;
    }
  }
  return nullptr;
}

bool is_passable(const Slot* slot) {
  for (const Table& table : tables) {
    const Entry* entries = table.entries.load(std::memory_order_acquire);  // PAIR preload.slots
    const auto* at = reinterpret_cast<const Entry*>(slot);
    if (entries != nullptr && at >= entries && at < entries + kEntries) return true;
  }
  return false;
}

SlotEntry* find_entry(int through, const SocketIdentity& id) {
  if (Entry* e = find_here(id)) return e;
  if (!proc_is_ours()) return nullptr;
  ucred peer{};
  socklen_t size = sizeof peer;
  char pid[16];
  if (sys::getsockopt(through, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) peer.pid = 0;
  for (const int hint : {static_cast<int>(peer.pid), static_cast<int>(sys::call(SYS_getppid))}) {
    std::snprintf(pid, sizeof pid, "%d", hint);
    if (Entry* e = hint > 0 ? find_at(pid, id) : nullptr) return e;
  }
  const int proc = static_cast<int>(
      sys::call(SYS_openat, AT_FDCWD, "/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (proc < 0) return nullptr;
  Entry* found = nullptr;
  DirectoryReader processes(proc);
  while (const char* name = found == nullptr ? processes.next() : nullptr) {
    if (*name >= '1' && *name <= '9') found = find_at(name, id);
  }
  sys::close(proc);
  return found;
}

}  // namespace clan::preload
