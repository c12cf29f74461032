#include "table/pipe_count.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "clan/face/pipe_memory.h"
#include "os/config.h"
#include "os/sandbox.h"
#include "os/sys.h"

namespace clan::preload {
namespace {

const PipeBounds& bounds() {
  static const PipeBounds found = pipe_bounds(config().memory, 0);
  return found;
}

// One set of semaphores, as this process uses it. relaxed, all of it: threads agree on the id, and
// `mine_` only serves to count anew
class Counters {
 public:
  /// Returns the pipes counted in it; <0: there is no set.
  std::int64_t sum(std::uint64_t group) {
    for (int turns = 0; turns < 2; ++turns) {
      const int id = find(group);
      const std::int64_t pipes = id < 0 ? -1 : counted_pipes(id);
      if (pipes >= 0 || id < 0 || !removed(id)) return pipes;
    }
    return -1;
  }
  /// Returns which semaphore it raised, from 1 on; 0: none.
  std::uint8_t raise(std::uint64_t group) {
    const int id = find(group);
    // A semaphore holds at most 32767. Each process starts with another one.
    const auto first = static_cast<unsigned>(sys::call(SYS_getpid));
    for (unsigned turns = 0; id >= 0 && turns < kPipeCounters; ++turns) {
      const unsigned at = (first + turns) % kPipeCounters;
      if (!change(id, at, 1)) {
        if (errno == ERANGE) continue;
        if (!removed(id)) return 0;
        return raise_again(group, at);
      }
      mine_[at].fetch_add(1, std::memory_order_relaxed);  // relaxed: see the class
      return static_cast<std::uint8_t>(at + 1);
    }
    return 0;
  }
  void lower(std::uint8_t raised) {
    if (raised == 0) return;
    const unsigned at = raised - 1u;
    mine_[at].fetch_sub(1, std::memory_order_relaxed);  // relaxed: see the class
    const int id = id_.load(std::memory_order_relaxed);
    if (id >= 0 && !change(id, at, -1)) (void)removed(id);
  }
  void stop() { id_.store(kNone, std::memory_order_relaxed); }  // relaxed: see the class
  void forked() {
    for (auto& pipes : mine_) pipes.store(0, std::memory_order_relaxed);  // relaxed: one thread
  }

 private:
  static constexpr int kUnknown = -2, kNone = -1;

  static bool change(int id, unsigned at, int by) {
    sembuf one{static_cast<unsigned short>(at), static_cast<short>(by), IPC_NOWAIT | SEM_UNDO};
    return sys::call(SYS_semop, id, &one, 1) == 0;
  }
  int find(std::uint64_t group) {
    int id = id_.load(std::memory_order_relaxed);
    if (id != kUnknown) return id;
    id = permits_counting() ? pipe_counters(::geteuid(), group, true) : kNone;
    id_.store(id, std::memory_order_relaxed);
    return id;
  }
  // The set was removed (ipcrm, or systemd-logind after logout) or is another user's: finds it
  // again. What this process has in it is counted anew.
  bool removed(int id) {
    if (errno != EIDRM && errno != EINVAL) {
      if (errno == EACCES || errno == EPERM)
        id_.compare_exchange_strong(id, kNone, std::memory_order_relaxed);
      return false;
    }
    return id_.compare_exchange_strong(id, kUnknown, std::memory_order_relaxed) || id != kNone;
  }
  std::uint8_t raise_again(std::uint64_t group, unsigned at) {
    const int id = find(group);
    if (id < 0) return 0;
    for (unsigned k = 0; k < kPipeCounters; ++k) {
      const auto pipes = static_cast<int>(mine_[k].load(std::memory_order_relaxed));
      if (pipes > 0) (void)change(id, k, pipes);
    }
    if (!change(id, at, 1)) return 0;
    mine_[at].fetch_add(1, std::memory_order_relaxed);
    return static_cast<std::uint8_t>(at + 1);
  }

  std::atomic<int> id_{kUnknown};
  std::atomic<std::uint32_t> mine_[kPipeCounters]{};
};
constinit Counters of_user, of_group;

std::uint64_t share(std::uint64_t bytes, std::int64_t counted, std::uint64_t here,
                    std::uint64_t more) {
  const std::uint64_t pipes =
      std::max(here, counted < 0 ? 0 : static_cast<std::uint64_t>(counted)) + more;
  return bytes / std::max<std::uint64_t>(1, pipes);
}

}  // namespace

PipeCharge charge_pipe() {
  const KeepErrno keep;
  PipeCharge charge;
  charge.of_user = of_user.raise(0);
  if (bounds().group.name != 0) charge.of_group = of_group.raise(bounds().group.name);
  return charge;
}

void discharge_pipe(PipeCharge charge) {
  const KeepErrno keep;
  of_user.lower(charge.of_user);
  of_group.lower(charge.of_group);
}

std::uint64_t share_of_pipe(std::uint64_t here, std::uint64_t more) {
  const KeepErrno keep;
  const PipeBounds& most = bounds();
  const std::uint64_t all = share(most.user, of_user.sum(0), here, more);
  if (most.group.name == 0) return all;
  return std::min(all, share(most.group.bytes, of_group.sum(most.group.name), here, more));
}

void stop_counting_pipes() {
  of_user.stop();
  of_group.stop();
}

void pipe_count_forked() {
  of_user.forked();
  of_group.forked();
}

}  // namespace clan::preload
