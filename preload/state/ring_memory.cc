// Connections that have carried much give its memory back when they fall silent.
//
// Nobody sees that a connection has fallen silent: then nothing runs. So an end releases memory of
// what it sends where time is to be had anyway, before a thread sleeps: at most once a second for
// each connection, so that a busy one pays next to nothing. For what cannot be released yet a
// thread that sleeps in one of our calls wakes up a second later, and ever more seldom while the
// other end does not read. A connection that carries short messages owes nothing, and nobody wakes
// up.
#include "state/ring_memory.h"

#include <algorithm>

#include "clan/detail/clock.h"
#include "os/signals.h"
#include "os/sys.h"
#include "table/fd_table.h"

namespace clan::preload {
namespace {

constexpr std::uint64_t kRestNs = 1'000'000'000;
constexpr int kMostFds = 1 << 16;
constexpr int kMostDoublings = 10;  ///< of the time between two looks

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

// Nanoseconds until it is to be checked again, or kSettled.
constexpr std::int64_t kSettled = -1;
std::int64_t release_one(int fd, std::uint64_t now) {
  const SocketRef s = acquire(fd);
  if (!s) return kSettled;
  s->owes_memory.store(false, std::memory_order_relaxed);
  if (!s->shared() || !s->pipe.is_large()) return kSettled;
  const int looks = s->release_looks.load(std::memory_order_relaxed);
  const std::uint64_t rest = kRestNs << std::min(looks, kMostDoublings);
  const std::uint64_t since = now - s->released_ns.load(std::memory_order_relaxed);
  if (since >= rest) {
    s->released_ns.store(now, std::memory_order_relaxed);
    if (s->pipe.release()) return kSettled;
    s->release_looks.store(looks + 1, std::memory_order_relaxed);
  }
  s->owes_memory.store(true, std::memory_order_relaxed);
  return static_cast<std::int64_t>(since >= rest ? 2 * rest : rest - since);
}

}  // namespace

void owe_memory(int fd, Socket& s) {
  if (s.owes_memory.load(std::memory_order_relaxed) || fd >= kMostFds) return;
  s.release_looks.store(0, std::memory_order_relaxed);
  s.owes_memory.store(true, std::memory_order_relaxed);
  set(fd);
}

std::int64_t release_memory() {
  if (!any.load(std::memory_order_relaxed)) return -1;
  const KeepErrno keep;
  const DeferSignals undisturbed;
  // order: before the looks below: what is set later sets it again
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
