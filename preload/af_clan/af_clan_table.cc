#include "af_clan/af_clan_table.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>

#include "clan/af_clan.h"
#include "clan/detail/words.h"
#include "os/signals.h"
#include "os/spin_lock.h"
#include "os/sys.h"

namespace clan::preload {
namespace {

// One for all descriptors of an open file. The pool is never freed: a stale pointer finds another
// name, not a hole.
struct Named {
  int refs = 0;
  std::atomic<int> socket_type{0};
  AfClanNames names;  ///< of a stream
  Named* next_free = nullptr;
};

using Entry = std::atomic<Named*>;
constexpr unsigned kMost = 1u << 20;
std::atomic<Entry*> table{nullptr};
std::atomic<int> highest{-1};  ///< descriptor ever entered
Named* pool = nullptr;
SpinLock table_lock;

struct Locked {
  DeferSignals undisturbed;
  std::lock_guard<SpinLock> lock{table_lock};
};

Entry* entry(int fd) {
  Entry* all = words::load_acquire(table);  // PAIR preload.af_clan: sees zeroed entries
  return all != nullptr && fd >= 0 && static_cast<unsigned>(fd) < kMost ? all + fd : nullptr;
}

// These are called under the lock.
Named* named(int fd) {
  Entry* e = entry(fd);
  return e != nullptr ? e->load(std::memory_order_relaxed) : nullptr;  // relaxed: under the lock
}

void leave(Named* n) {
  if (n == nullptr || --n->refs > 0) return;
  // relaxed: read only of a descriptor that is being closed
  n->socket_type.store(0, std::memory_order_relaxed);
  n->next_free = pool;
  pool = n;
}

void enter(int fd, Named* n) {
  Entry* e = entry(fd);
  if (n != nullptr) {
    ++n->refs;
    // relaxed: under the lock, and before the program knows `fd`
    if (fd > highest.load(std::memory_order_relaxed)) highest.store(fd, std::memory_order_relaxed);
  }
  // PAIR preload.named: publishes the names
  leave(e->exchange(n, std::memory_order_acq_rel));
}

Named* make(int type, const AfClanNames& names) {
  if (pool == nullptr) {
    constexpr std::size_t kBatch = 64;
    void* memory = sys::mmap(nullptr, kBatch * sizeof(Named), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    for (std::size_t i = 0; i < kBatch; ++i) {
      auto* n = new (static_cast<Named*>(memory) + i) Named;
      n->next_free = pool;
      pool = n;
    }
  }
  Named* n = pool;
  pool = n->next_free;
  n->names = names;
  n->socket_type.store(type, std::memory_order_relaxed);  // relaxed: published by enter()
  return n;
}

// --- exec ----------------------------------------------------------------------------------------

constexpr char kInheritedNames[] = "CLAN_INHERITED_NAMES";

char* put_hex(char* to, char begin, const ClanName& name) {
  *to++ = begin;
  for (std::size_t i = 0; i < name.size; ++i) {
    to += std::snprintf(to, 3, "%02x", static_cast<unsigned char>(name.text[i]));
  }
  return to;
}

ClanName get_hex(const char* from) {
  ClanName name;
  unsigned byte;
  for (++from; name.size < sizeof name.text && std::sscanf(from, "%2x", &byte) == 1; from += 2) {
    name.text[name.size++] = static_cast<char>(byte);
  }
  return name;
}

}  // namespace

AfClanNames af_clan_names(int fd) {
  const Locked locked;
  const Named* n = named(fd);
  return n != nullptr ? n->names : AfClanNames{};
}

void remember_af_clan(int fd, const ClanName* local, const ClanName* peer) {
  const Locked locked;
  Named* n = named(fd);
  if (n == nullptr) return;
  if (local != nullptr) n->names.local = *local;
  if (peer != nullptr) n->names.peer = *peer;
}

bool af_clan_appear(int fd, int type, const AfClanNames& names) {
  KeepErrno keep;
  const Locked locked;
  if (table.load(std::memory_order_relaxed) == nullptr) {  // relaxed: under the lock
    void* memory = sys::mmap(nullptr, kMost * sizeof(Entry), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    // PAIR preload.af_clan: publishes zeroed entries
    words::store_release(table, static_cast<Entry*>(memory));
  }
  Named* n = entry(fd) != nullptr ? make(type, names) : nullptr;
  if (n == nullptr) return false;
  enter(fd, n);
  // relaxed: before the program knows `fd`
  af_clan_used.store(true, std::memory_order_relaxed);
  return true;
}

int af_clan_type(int fd) {
  const Entry* e = entry(fd);
  // PAIR preload.named: sees the names
  const Named* n = e != nullptr ? e->load(std::memory_order_acquire) : nullptr;
  return n != nullptr ? n->socket_type.load(std::memory_order_relaxed) : 0;
}

void duplicate_af_clan(int from, int to) {
  Entry* e = entry(from);
  if (e == nullptr || entry(to) == nullptr) return forget_af_clan(to);
  // relaxed: a hint; read again under the lock
  const auto has = [](const Entry* one) { return one->load(std::memory_order_relaxed) != nullptr; };
  if (!has(e) && !has(entry(to))) return;
  const Locked locked;
  enter(to, e->load(std::memory_order_relaxed));  // relaxed: under the lock
}

void forget_af_clan(int fd) {
  Entry* e = entry(fd);
  if (e == nullptr || e->load(std::memory_order_relaxed) == nullptr) return;
  const Locked locked;
  enter(fd, nullptr);
}

void forget_af_clan_range(unsigned first, unsigned last) {
  // relaxed: at least what this thread knows
  const int most = highest.load(std::memory_order_relaxed);
  if (most < 0) return;
  for (unsigned fd = first; fd <= std::min(last, static_cast<unsigned>(most)); ++fd) {
    forget_af_clan(static_cast<int>(fd));
  }
}

void lock_af_clan() { table_lock.lock(); }
void unlock_af_clan() { table_lock.unlock(); }

char* af_clan_inheritance() {
  static char text[16384];
  constexpr std::size_t kLongest = 32 + 2 * (1 + 2 * CLAN_NAME_MAX);
  const int begin = std::snprintf(text, sizeof text, "%s=", kInheritedNames);
  char* to = text + begin;
  // relaxed: at least what this thread knows
  const int most = highest.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= most && to + kLongest < text + sizeof text; ++fd) {
    if (af_clan_type(fd) == 0) continue;
    const int flags = sys::fcntl(fd, F_GETFD);
    if (flags < 0 || (flags & FD_CLOEXEC) != 0) continue;
    const AfClanNames names = af_clan_names(fd);
    to += std::snprintf(to, 32, "%d:%d:", fd, af_clan_type(fd));
    to = put_hex(to, 'l', names.local);
    to = put_hex(to, 'p', names.peer);
    *to++ = ',';
  }
  *to = 0;
  return to > text + begin ? text : nullptr;
}

void af_clan_take_over() {
  const char* text = std::getenv(kInheritedNames);
  if (text == nullptr) return;
  int fd, type, used;
  char local[2 + 2 * CLAN_NAME_MAX], peer[2 + 2 * CLAN_NAME_MAX];
  while (std::sscanf(text, "%d:%d:%193[l0-9a-f]%193[p0-9a-f],%n", &fd, &type, local, peer, &used) ==
         4) {
    if (sys::socket_option(fd, SO_TYPE) == type &&
        sys::socket_option(fd, SO_DOMAIN) == (type == SOCK_STREAM ? AF_INET : AF_UNIX)) {
      af_clan_appear(fd, type, AfClanNames{get_hex(local), get_hex(peer)});
    }
    text += used;
  }
  ::unsetenv(kInheritedNames);
}

}  // namespace clan::preload
