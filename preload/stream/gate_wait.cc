#include "stream/gate_wait.h"

#include <sched.h>
#include <time.h>

#include <cstdint>
#include <cstring>

#include "clan/clock.h"
#include "clan/socket_face.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/open_file.h"
#include "state/socket.h"
#include "stream/aborted.h"

namespace clan::preload {

namespace {

bool is_closed(const Slot::Counter& counter) {
  // PAIR preload.gate: as in look()
  return (counter.load(std::memory_order_acquire) & Slot::kClosed) != 0;
}

}  // namespace

// In the place of the thread that has closed it.
void UntilOpen::open_for(Slot::Counter& counter, std::uint64_t now, bool killed) {
  if (!killed) {
    break_off(fd_, s_, "a process that shares it is stopped in the middle of using it");
  }
  const std::uint64_t open = now & (Slot::kClosed - 1);
  const std::uint64_t next = closer_ == 0 ? open : open | Slot::closed_by(closer_);
  // PAIR preload.gate: opened, or closed, in the place of its owner
  took_over_ =
      counter.compare_exchange_strong(now, next, std::memory_order_acq_rel) && closer_ != 0;
}

// At the thread that has it closed.
void UntilOpen::look(Slot::Counter& counter, OwnerWait& wait) {
  // PAIR preload.gate: sees which thread has closed it
  const std::uint64_t now = counter.load(std::memory_order_acquire);
  if ((now & Slot::kClosed) == 0) return;
  if (Slot::is_resend(now)) return;  // that may take long; see resends()
  KeepErrno keep;
  const auto name = static_cast<std::uint32_t>(now >> Slot::kCloser);
  const std::uint32_t seen = sys::is_of_another_namespace(name) ? 0 : name & sys::kThreadId;
  const bool died = closer_has_died(now);
  if (!died && wait.look(seen, s_.pipe.owner_waits()) == OwnerWait::Owner::kIsWaitedFor) return;
  open_for(counter, now, died);
}

bool UntilOpen::wait(Slot::Counter& counter) {
  OwnerWait& wait = wait_of(counter);
  const bool again = wait.gave_up();
  sched_yield();
  if (!again && ++turns_ % 64 != 0) return true;
  look(counter, wait);
  if (took_over_ || !is_closed(counter)) return true;
  if (again || !wait_.goes_on(monotonic_ns())) {
    wait.give_up();
    return false;
  }
  const timespec nap{0, 1'000'000};
  if (turns_ > 1024) {
    KeepErrno keep;
    sys::call(SYS_nanosleep, &nap, nullptr);
  }
  return true;
}

bool UntilOpen::is_shut(Slot::Counter& counter) {
  OwnerWait& wait = wait_of(counter);
  if (!wait.gave_up()) return false;
  look(counter, wait);
  return is_closed(counter);
}

}  // namespace clan::preload
