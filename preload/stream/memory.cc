// Connections that have carried much give its memory back when they fall silent.
//
// Nobody sees that a connection has fallen silent: then nothing runs. So memory is released where
// time is to be had anyway, before a thread sleeps; and by a receive that finds the pipe empty, for
// programs that do not sleep in our calls. Either end releases both directions. At most once a
// second for each connection, so that a busy one pays next to nothing; what is owed then is done by
// a thread that sleeps in one of our calls and wakes up once for that, a second later. A connection
// that carries short messages owes nothing, and nobody wakes up.
#include "stream/memory.h"

#include <algorithm>

#include "clan/clock.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/fd_table.h"

namespace clan::preload {
namespace {

constexpr std::uint64_t kRestNs = 1'000'000'000;
constexpr int kMostFds = 1 << 16;
/// While the other end has not read what was sent it is looked at again so many times; then its
/// reader sees to it.
constexpr int kMostLooks = 3;

// A bit for each descriptor whose connection owes memory. A number that names another socket by now
// is harmless.
std::atomic<std::uint64_t> owing[kMostFds / 64];
std::atomic<std::uint64_t> groups[kMostFds / 64 / 64];  ///< a bit for each word of these
std::atomic<bool> any{false};

void set(int fd) {
  const int word = fd / 64;
  // relaxed: a thread that sees it later sees to it later
  owing[word].fetch_or(std::uint64_t{1} << fd % 64, std::memory_order_relaxed);
  groups[word / 64].fetch_or(std::uint64_t{1} << word % 64, std::memory_order_relaxed);
  any.store(true, std::memory_order_relaxed);
}

// Nanoseconds until it is to be looked at again, or kSettled.
constexpr std::int64_t kSettled = -1;
std::int64_t release_one(int fd, std::uint64_t now) {
  const Held s = hold(fd);
  if (!s) return kSettled;
  s->owes_memory.store(false, std::memory_order_relaxed);
  if (!s->shared() || !s->pipe.is_large()) return kSettled;
  const std::uint64_t since = now - s->released_ns.load(std::memory_order_relaxed);
  if (since >= kRestNs) {
    s->released_ns.store(now, std::memory_order_relaxed);
    if (s->pipe.release()) {
      s->release_looks.store(0, std::memory_order_relaxed);
      return kSettled;
    }
    if (s->release_looks.fetch_add(1, std::memory_order_relaxed) >= kMostLooks) return kSettled;
  }
  s->owes_memory.store(true, std::memory_order_relaxed);
  return static_cast<std::int64_t>(since >= kRestNs ? kRestNs : kRestNs - since);
}

}  // namespace

void owe_memory(int fd, Socket& s, bool empty) {
  // of a stream, whose receives are short beside a look at the clock
  constexpr std::uint32_t kSeldom = 16;
  const bool owes = s.owes_memory.load(std::memory_order_relaxed);
  if (empty && (!owes || s.receives_owing.fetch_add(1, std::memory_order_relaxed) % kSeldom == 0)) {
    const std::uint64_t now = monotonic_ns();
    if (now - s.released_ns.load(std::memory_order_relaxed) >= kRestNs) {
      s.released_ns.store(now, std::memory_order_relaxed);
      if (s.pipe.release()) return;
    }
  }
  if (owes || fd >= kMostFds) return;
  s.release_looks.store(0, std::memory_order_relaxed);
  s.owes_memory.store(true, std::memory_order_relaxed);
  set(fd);
}

std::int64_t release_memory() {
  if (!any.load(std::memory_order_relaxed)) return -1;
  const KeepErrno keep;
  const Undisturbed undisturbed;
  // order: before the looks below: what is set later sets it again
  // before the looks below: what is set later sets it again
  any.exchange(false, std::memory_order_seq_cst);
  const std::uint64_t now = monotonic_ns();
  std::int64_t next = -1;
  for (int group = 0; group < kMostFds / 64 / 64; ++group) {
    if (groups[group].load(std::memory_order_relaxed) == 0) continue;
    std::uint64_t words = groups[group].exchange(0, std::memory_order_relaxed);
    for (; words != 0; words &= words - 1) {
      const int word = group * 64 + __builtin_ctzll(words);
      std::uint64_t fds = owing[word].exchange(0, std::memory_order_relaxed);
      for (; fds != 0; fds &= fds - 1) {
        const int fd = word * 64 + __builtin_ctzll(fds);
        const std::int64_t again = release_one(fd, now);
        if (again == kSettled) continue;
        set(fd);
        next = next < 0 ? again : std::min(next, again);
      }
    }
  }
  return next;
}

}  // namespace clan::preload
