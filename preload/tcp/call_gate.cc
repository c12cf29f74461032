#include "tcp/call_gate.h"

#include <sched.h>
#include <time.h>

#include "clan/detail/words.h"
#include "os/sys.h"

namespace clan::preload {
namespace {

constexpr std::uint32_t kTurnsBetweenLooks = 64, kYieldsBeforeNap = 1024;

// Takes a counter for `closer` (0: opens it) from a thread that died, or had the caller's id.
bool take_from_dead(OpenFileState::Counter& counter, std::uint32_t turn, std::uint64_t closer) {
  // PAIR preload.gate: sees which thread has closed it
  std::uint64_t now = words::load_acquire(counter);
  if ((now & OpenFileState::kClosed) == 0 || OpenFileState::is_resend(now)) return false;
  // Not in each turn: it takes a system call.
  const bool checks = turn % kTurnsBetweenLooks == kTurnsBetweenLooks - 1;
  const bool died =
      OpenFileState::is_closed_by(now, closer_id()) || (checks && closer_has_died(now));
  // PAIR preload.gate: in the place of its closer
  return died && words::cas(counter, now, (now & (OpenFileState::kClosed - 1)) | closer);
}

void pause(std::uint32_t turn) {
  if (turn < kYieldsBeforeNap) {
    sched_yield();
    return;
  }
  const KeepErrno keep;
  const timespec nap{0, 1'000'000};
  sys::call(SYS_nanosleep, &nap, nullptr);
}

}  // namespace

bool await_gate(OpenFileState::Counter& counter, std::uint32_t turn) {
  // PAIR preload.gate: sees which thread has closed it
  if (OpenFileState::is_resend(words::load_acquire(counter))) return false;
  if (!take_from_dead(counter, turn, 0)) pause(turn);
  return true;
}

void await_mover(OpenFileState::Counter& counter) {
  for (std::uint32_t turn = 0;; ++turn) {
    // order: a read-modify-write sees the last word; a thread that closes the counter after it sees
    // what was announced
    const std::uint64_t now = counter.fetch_add(0, std::memory_order_acq_rel);
    if ((now & OpenFileState::kClosed) == 0 || !await_gate(counter, turn)) return;
  }
}

ClosedGate::ClosedGate(OpenFileState::Counter& counter) : counter_(counter) {
  for (std::uint32_t turn = 0; !OpenFileState::try_close_over(counter, me_); ++turn) {
    if (take_from_dead(counter, turn, OpenFileState::closed_by(me_))) return;
    pause(turn);
  }
}

}  // namespace clan::preload
