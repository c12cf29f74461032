// Silent connections that have carried much give their memory back.
//
// Nothing runs when a connection falls silent. So an end releases memory of what it sends before a
// thread sleeps, at most once a second per connection. For what cannot be released yet, a sleeping
// thread wakes up a second later, then ever more seldom while the peer does not read. Connections
// with short messages owe nothing and cause no wake-ups.
#include "state/ring_memory.h"

#include <algorithm>

#include "clan/detail/clock.h"
#include "os/sys.h"
#include "table/fd_table.h"

namespace clan::preload {
namespace {

constexpr std::uint64_t kRestNs = 1'000'000'000;
constexpr int kMostFds = 1 << 16;
constexpr int kMostDoublings = 10;  ///< of the time between two looks

// A bit per descriptor whose connection owes memory. A reused number does no harm.
std::atomic<std::uint64_t> owing[kMostFds / 64];
std::atomic<std::uint64_t> groups[kMostFds / 64 / 64];  ///< a bit for each word of these
std::atomic<bool> any{false};

void set(int fd) {
  const int word = fd / 64;
  // relaxed: a thread that sees it late acts late
  owing[word].fetch_or(std::uint64_t{1} << fd % 64, std::memory_order_relaxed);
  groups[word / 64].fetch_or(std::uint64_t{1} << word % 64, std::memory_order_relaxed);
  any.store(true, std::memory_order_relaxed);
}

// Returns nanoseconds until the next check, or kSettled.
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
  // order: before the reads below; a bit set after them sets it again
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
