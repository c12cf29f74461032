// Descriptors that are passed on by SCM_RIGHTS before their connection has moved.
//
// Whoever has the open file has to know before it moves. The sender cannot say who will receive the
// descriptor, nor whether that program loads the library. So it puts the socket's Slot where others can find
// it, in a memfd, and counts the descriptor as on its way; the receiver finds the slot by what the kernel
// says of the socket, and claims it. From then on both share the slot as after a fork, and either may move
// the connection, or close.
//
//   sender      counts one on its way | sendmsg                     nobody moves it
//   receiver                                 recvmsg | finds the slot, claims     anybody who has it may
//
// A receiver without the library, or one that may not or does not want to share memory, claims nothing, and
// the connection stays on TCP. So it does when there is no room for the slot.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>

#include "clan/clock.h"
#include "os/config.h"
#include "state/own_descriptors.h"
#include "migrate/rendezvous.h"
#include "os/signals.h"
#include "state/socket.h"

namespace clan::preload {
namespace {

struct alignas(128) Entry {
  Slot slot;
  std::atomic<std::uint64_t> cookie;  // SO_COOKIE
  std::atomic<std::uint64_t> inode;   // of the socket
  std::atomic<std::uint64_t> pids;    // the inode of the pid namespace: locks of a pipe hold thread ids
  std::atomic<std::uint32_t> client;
};
static_assert(sizeof(Entry) == 128);

constexpr char kName[] = "clan-slots-1";  // the version of an Entry: who has another one finds none
constexpr char kLink[] = "/memfd:clan-slots-1 (deleted)";
constexpr std::size_t kEntries = 512;
constexpr std::size_t kBytes = kEntries * sizeof(Entry);
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

// Tables that are mapped here: our own, and those of processes that have sent something. Never unmapped.
struct Table {
  std::atomic<Entry*> entries{nullptr};
  std::atomic<std::uint64_t> inode{0};
};
constexpr std::size_t kTables = 16;
Table tables[kTables];           // the first is our own
std::atomic<int> own_memfd{-1};  ///< of that; -1: what is passed now cannot be found

Entry* map_table(int memfd) {
  void* memory = sys::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Entry*>(memory);
}

Entry* own_table() {
  Entry* own = tables[0].entries.load(std::memory_order_acquire);  // PAIR preload.slots
  if (own != nullptr) return own;
  const int memfd = static_cast<int>(sys::call(SYS_memfd_create, kName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memfd < 0) return nullptr;
  Entry* made = sys::call(SYS_ftruncate, memfd, kBytes) == 0 && sys::fcntl(memfd, F_ADD_SEALS, kSeals) == 0
                    ? map_table(memfd)
                    : nullptr;
  // PAIR preload.slots: publishes zeroed entries
  if (made != nullptr && tables[0].entries.compare_exchange_strong(own, made, std::memory_order_acq_rel)) {
    own_memfd.store(move_high(memfd));  // stays open, for receivers to find
    return made;
  }
  if (made != nullptr) sys::munmap(made, kBytes);
  sys::close(memfd);
  return own;
}

struct Identity {
  std::uint64_t cookie = 0, inode = 0, pids = 0;
};
bool identify(int fd, Identity* id) {
  struct stat socket {
  }, pids{};
  socklen_t size = sizeof id->cookie;
  if (sys::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &id->cookie, &size) != 0 || id->cookie == 0) return false;
  if (sys::fstat(fd, &socket) != 0 || ::stat("/proc/self/ns/pid", &pids) != 0) return false;
  id->inode = socket.st_ino;
  id->pids = pids.st_ino;
  return true;
}

// Nobody has it: users that closed it, and calls of theirs that are still under way, are gone. `also_lost`:
// one whose descriptors are all on their way, and may never be received.
bool take(Entry& e, bool also_lost) {
  std::uint64_t held = e.slot.held.load();
  if (Slot::users(held) != 0 || (Slot::on_its_way(held) != 0 && !also_lost)) return false;
  if (e.slot.sends.load() != 0 || e.slot.receives.load() != 0) return false;
  return e.slot.held.compare_exchange_strong(held, Slot::renewed(held));
}

Entry* new_entry() {
  Entry* table = own_table();
  for (const bool also_lost : {false, true}) {
    for (std::size_t i = 0; table != nullptr && i < kEntries; ++i) {
      if (!take(table[i], also_lost)) continue;
      table[i].cookie = 0;
      table[i].slot.pipe_pid = 0;
      table[i].slot.pipe_fd = -1;
      table[i].slot.pinned = 0;
      return table + i;
    }
  }
  return nullptr;
}

// The slot is where receivers can find it.
bool is_passable(const Slot* slot) {
  for (const Table& table : tables) {
    const Entry* entries = table.entries.load(std::memory_order_acquire);  // PAIR preload.slots
    const auto* at = reinterpret_cast<const Entry*>(slot);
    if (entries != nullptr && at >= entries && at < entries + kEntries) return true;
  }
  return false;
}

Entry* find_in(Entry* entries, const Identity& id) {
  for (std::size_t i = 0; entries != nullptr && i < kEntries; ++i) {
    Entry& e = entries[i];
    if (e.cookie.load() == id.cookie && e.inode.load() == id.inode && e.pids.load() == id.pids) return &e;
  }
  return nullptr;
}

Entry* find_here(const Identity& id) {
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
    std::uint64_t inode = tables[i].inode.load();
    if (inode == about.st_ino) {
      return tables[i].entries.load(std::memory_order_acquire);  // PAIR preload.slots
    }
    if (inode != 0 || !tables[i].inode.compare_exchange_strong(inode, about.st_ino)) continue;
    Entry* entries = map_table(memfd);
    tables[i].entries.store(entries, std::memory_order_release);  // PAIR preload.slots
    return entries;
  }
  return nullptr;
}

Entry* find_at(const char* pid, const Identity& id) {
  char path[40];
  std::snprintf(path, sizeof path, "/proc/%.16s/fd", pid);
  const int directory =
      static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory < 0) return nullptr;
  Entry* found = nullptr;
  DirectoryReader names(directory);
  while (const char* name = found == nullptr ? names.next() : nullptr) {
    if (*name == '.') continue;
    const int memfd = open_memfd_of(static_cast<unsigned>(std::atoi(pid)), std::atoi(name), kLink, O_RDWR);
    if (memfd < 0) continue;
    found = find_in(take_table(memfd), id);
    sys::close(memfd);
  }
  sys::close(directory);
  return found;
}

// By the process that made the AF_UNIX socket, our parent, or anybody.
Entry* find_entry(int through, const Identity& id) {
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
  const int proc =
      static_cast<int>(sys::call(SYS_openat, AT_FDCWD, "/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (proc < 0) return nullptr;
  Entry* found = nullptr;
  DirectoryReader processes(proc);
  while (const char* name = found == nullptr ? processes.next() : nullptr) {
    if (*name >= '1' && *name <= '9') found = find_at(name, id);
  }
  sys::close(proc);
  return found;
}

}  // namespace

bool close_slots(unsigned first, unsigned last, bool already_closed) {
  int memfd = own_memfd.load();
  if (memfd < 0 || static_cast<unsigned>(memfd) < first || static_cast<unsigned>(memfd) > last) return false;
  if (!own_memfd.compare_exchange_strong(memfd, -1)) return false;
  if (!already_closed) sys::close(memfd);
  return true;
}

bool put_on_its_way(int fd, Socket& s) {
  KeepErrno keep;
  const Undisturbed undisturbed;
  while (s.moving.test_and_set(std::memory_order_acquire)) sched_yield();
  struct Unlock {
    Socket& s;
    ~Unlock() { s.moving.clear(std::memory_order_release); }
  } unlock{s};
  const auto state = s.state.load();
  if (state == Socket::State::kKernel || state == Socket::State::kShared) return false;
  // What has been taken up already would be another process's to go on with.
  if (state == Socket::State::kOffered && (s.pipe || s.place == Socket::Place::kElsewhere)) return false;
  Slot* slot = s.slot.load(std::memory_order_acquire);
  constexpr std::uint64_t kMost = 1000;  // somebody takes them who does not claim
  if (slot->pinned.load() != 0 || Slot::on_its_way(slot->held.load()) > kMost) return false;
  if (slot == &s.own_slot) {
    if (own_table() == nullptr || own_memfd.load() < 0) return false;
    Identity id;
    Entry* e = identify(fd, &id) ? new_entry() : nullptr;
    if (e == nullptr) return false;
    e->inode = id.inode;
    e->pids = id.pids;
    e->client = s.client ? 1 : 0;
    if (!share_slot(s, &e->slot)) return false;
    e->cookie = id.cookie;
    slot = &e->slot;
  } else if (!is_passable(slot)) {
    return false;
  }
  if (state == Socket::State::kOffered) {  // whoever goes on with it offers again
    withdraw_offer(s);
    s.state.store(Socket::State::kTcp);
  }
  slot->held.fetch_add(Slot::kOnItsWay);
  // Who moves it just now, another process, has looked before.
  constexpr std::uint64_t kPatienceNs = 1'000'000'000;
  const std::uint64_t end = monotonic_ns() + kPatienceNs;
  while ((slot->receives.load() & Slot::kClosed) != 0 && monotonic_ns() < end) sched_yield();
  if (slot->pipe_fd.load() < 0) return true;
  slot->held.fetch_sub(Slot::kOnItsWay);
  return false;
}

void take_off_its_way(Socket& s) {
  Slot* slot = s.slot.load(std::memory_order_acquire);
  if (slot->pinned.load() == 0 && is_passable(slot)) slot->held.fetch_sub(Slot::kOnItsWay);
}

bool claim_passed(int fd, Socket& s, int through, bool peeked) {
  Identity id;
  Entry* e = identify(fd, &id) ? find_entry(through, id) : nullptr;
  if (e == nullptr) return false;
  std::uint64_t held = e->slot.held.load();
  do {
    if (Slot::on_its_way(held) == 0 || e->cookie.load() != id.cookie) return false;
    if (peeked) {  // another copy of it will be received, and nobody knows what is done with this one
      e->slot.pinned.store(1);
      return false;
    }
    e->slot.to_follow.fetch_add(1);  // before nobody is on its way any more
    if (e->slot.held.compare_exchange_strong(held, held - Slot::kOnItsWay + 1)) break;
    e->slot.to_follow.fetch_sub(1);
  } while (true);
  s.client = e->client.load() != 0;
  s.inherited = true;
  s.slot.store(&e->slot, std::memory_order_release);
  return true;
}

}  // namespace clan::preload
