#include "stream/gate_wait.h"

#include <poll.h>
#include <sched.h>
#include <time.h>

#include <cstdint>
#include <cstring>

#include "clan/clock.h"
#include "clan/log.h"
#include "os/sys.h"
#include "os/tcp.h"
#include "state/open_file.h"
#include "state/socket.h"
#include "stream/tcp_prefix.h"

namespace clan::preload {

bool UntilOpen::wait(Slot::Counter& counter) {
  constexpr std::uint64_t kForKilledNs = 500'000'000;  // it may count in another pid namespace
  sched_yield();
  if (++turns_ % 64 != 0) return true;
  KeepErrno keep;
  // PAIR preload.gate: sees who has closed it
  std::uint64_t now = counter.load(std::memory_order_acquire);
  const std::uint64_t time = monotonic_ns(), closer = now >> Slot::kCloser;
  if (closer != closer_) {
    closer_ = closer;
    wait_.end();
  }
  const bool over = !wait_.goes_on(time);
  const std::uint64_t waited = wait_.waited_ns();
  if ((now & Slot::kClosed) == 0) return !over;
  const auto thread = static_cast<pid_t>(closer);
  const Slot& slot = s_.open_file();
  const bool resends = &counter == &slot.sends && slot.resender.load() == thread;
  const bool killed = waited > kForKilledNs && !sys::exists(thread);
  if (!killed && (resends || !over)) {  // to send again may take long
    const timespec nap{0, 1'000'000};
    if (turns_ > 1024) sys::call(SYS_nanosleep, &nap, nullptr);
    return true;
  }
  if (!killed || resends) {
    log_line(
        LogLevel::kError,
        "fd %d: process or thread %d, which shares it, %s in the middle of using it; the connection is reset",
        fd_, thread, killed ? "was killed" : "is stopped");
    reset_connection(fd_);
    s_.kernel_error.store(true);
  }
  // PAIR preload.gate: opened in the place of its owner
  took_over_ |= counter.compare_exchange_strong(now, now & (Slot::kClosed - 1), std::memory_order_acq_rel);
  return true;
}

void Draining::wait(int fd, Socket& s) {
  UntilOpen until(fd, s);
  // Once it has moved nobody who is counted is in the kernel: he steps back, or was killed.
  while (!Slot::try_close_over(slot_->receives, me_)) {
    (void)until.wait(slot_->receives);
    slot_ = &s.open_file();  // fork moves it
  }
  if (until.took_over()) recount_doorbells(fd, s);
}

bool Patience::wait() {
  sched_yield();
  if (++turns_ % 64 != 0) return true;
  const std::uint64_t now = monotonic_ns();
  const bool goes_on = wait_.goes_on(now);
  pollfd p{fd_, POLLRDHUP, 0};
  if (sys::poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR)) != 0) return false;
  if (goes_on) return true;
  CLAN_WARN("fd %d: its pipe says what cannot be; the connection is reset", fd_);
  reset_connection(fd_);
  s_.kernel_error.store(true);
  return false;
}

}  // namespace clan::preload
