#include "tcp/call_gate.h"

#include <sched.h>
#include <time.h>

#include <cstdint>

#include "clan/detail/words.h"
#include "os/sys.h"
#include "table/open_file.h"

namespace clan::preload {
namespace {

constexpr std::uint32_t kTurnsBetweenLooks = 64, kYieldsBeforeNap = 1024;

// A turn in which the thread that has closed a counter with this word is looked for, and has died.
bool has_died(std::uint64_t now, std::uint32_t turn) {
  return (now & Slot::kClosed) != 0 && turn % kTurnsBetweenLooks == kTurnsBetweenLooks - 1 &&
         closer_has_died(now);
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

bool await_gate(Slot::Counter& counter, std::uint32_t turn) {
  // PAIR preload.gate: sees which thread has closed it
  std::uint64_t now = words::load_acquire(counter);
  if (Slot::is_resend(now)) return false;
  const bool died = Slot::is_closed_by(now, closer_id()) || has_died(now, turn);
  // PAIR preload.gate: in the place of its closer
  if (died && words::cas(counter, now, now & (Slot::kClosed - 1))) return true;
  pause(turn);
  return true;
}

void await_mover(Slot::Counter& counter) {
  for (std::uint32_t turn = 0;; ++turn) {
    // order: a read-modify-write sees the last word; a thread that closes the counter after it sees
    // what was announced
    const std::uint64_t now = counter.fetch_add(0, std::memory_order_acq_rel);
    if ((now & Slot::kClosed) == 0 || !await_gate(counter, turn)) return;
  }
}

ClosedGate::ClosedGate(Slot::Counter& counter) : counter_(counter) {
  for (std::uint32_t turn = 0; !Slot::try_close_over(counter, me_); ++turn) {
    // PAIR preload.gate: sees which thread has closed it
    std::uint64_t now = words::load_acquire(counter);
    const std::uint64_t next = (now & (Slot::kClosed - 1)) | Slot::closed_by(me_);
    // PAIR preload.gate: from its closer
    const bool died = Slot::is_closed_by(now, me_) || has_died(now, turn);  // of the caller's id
    if (died && words::cas(counter, now, next)) {
      took_over_ = true;
      return;
    }
    pause(turn);
  }
}

}  // namespace clan::preload
