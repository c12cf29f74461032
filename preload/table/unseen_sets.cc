#include "table/unseen_sets.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "kernel/proc.h"
#include "os/sys.h"
#include "state/hooks.h"
#include "table/fd_table.h"
#include "table/internal_fds.h"

namespace clan::preload {
namespace {

using reasons::Why;

constexpr char kSetLink[] = "anon_inode:[eventpoll]";
constexpr unsigned kMost = 65536;  ///< sets with higher numbers count as seen
/// Bits, by descriptor. relaxed, all of it: a thread learns of a descriptor in an ordered way.
constinit std::atomic<std::uint64_t> seen[kMost / 64]{};

constexpr std::uint64_t bit(unsigned fd) { return std::uint64_t{1} << fd % 64; }

// Checks /proc now. Adds to `looked_at` the descriptors checked.
Why find_unseen(int* looked_at) {
  Why found = Why::kNone;
  (void)any_descriptor(
      "self",
      [looked_at](int fd) {
        ++*looked_at;
        return !is_seen_set(fd) && !known(fd) && !is_ours(fd);
      },
      [&found](const char* link) {
        if (std::strcmp(link, kSetLink) == 0) found = Why::kUnseenSet;
        if (std::strcmp(link, "anon_inode:[io_uring]") == 0) found = Why::kUring;
        return found != Why::kNone;
      });
  return found;
}

// Rules out a thread that makes, copies or closes a set and has not reported it yet.
Why find_lasting(int* looked_at) {
  Why found = find_unseen(looked_at);
  for (long nap_ns = 1'000'000; found != Why::kNone && nap_ns < 20'000'000; nap_ns *= 4) {
    const timespec nap{0, nap_ns};
    sys::call(SYS_nanosleep, &nap, nullptr);
    found = find_unseen(looked_at);
  }
  return found;
}

}  // namespace

bool is_seen_set(int epfd) {
  const auto fd = static_cast<unsigned>(epfd);
  return fd >= kMost || (seen[fd / 64].load(std::memory_order_relaxed) & bit(fd)) != 0;
}

void saw_set(int epfd) {
  const auto fd = static_cast<unsigned>(epfd);
  if (fd < kMost) seen[fd / 64].fetch_or(bit(fd), std::memory_order_relaxed);
}

void forget_set(unsigned first, unsigned last) {
  for (unsigned fd = first; fd <= std::min(last, kMost - 1); ++fd) {
    auto& word = seen[fd / 64];
    if (word.load(std::memory_order_relaxed) == 0) {
      fd |= 63;  // nor are the others of it
    } else {
      word.fetch_and(~bit(fd), std::memory_order_relaxed);
    }
  }
}

void see_sets_at_start() {
  int now = -1;
  (void)any_descriptor(
      "self",
      [&now](int fd) {
        now = fd;
        return true;
      },
      [&now](const char* link) {
        if (std::strcmp(link, kSetLink) == 0) saw_set(now);
        return false;
      });
}

Why unseen_use() {
  constexpr int kPaid = 64;
  // relaxed: independent numbers; two threads may look twice
  static std::atomic<int> unpaid{0};
  static std::atomic<Why> found{Why::kNone};
  if (unpaid.load(std::memory_order_relaxed) > kPaid) {
    unpaid.fetch_sub(kPaid, std::memory_order_relaxed);
    return found.load(std::memory_order_relaxed);
  }
  const KeepErrno keep;
  int looked_at = 0;
  const bool is_news = found.load(std::memory_order_relaxed) == Why::kNone;
  const Why now = is_news ? find_lasting(&looked_at) : find_unseen(&looked_at);
  unpaid.store(looked_at, std::memory_order_relaxed);
  if (found.exchange(now, std::memory_order_relaxed) != now && now != Why::kNone)
    hooks.unseen_use(now);
  return now;
}

}  // namespace clan::preload
