#include "migrate/answer.h"

#include <cstdint>
#include <cstring>

#include "clan/clock.h"
#include "clan/log.h"
#include "clan/pipe.h"
#include "clan/reasons.h"
#include "clan/socket_face.h"
#include "migrate/demote_end.h"
#include "migrate/resend.h"
#include "migrate/returned_bytes.h"
#include "os/signals.h"
#include "os/sys.h"
#include "os/tcp.h"
#include "state/face.h"
#include "state/hooks.h"
#include "state/open_file.h"
#include "state/socket.h"
#include "stream/doorbell.h"
#include "stream/gate_wait.h"

namespace clan::preload {
namespace {

using socket_face::kGone;
using socket_face::kLeaving;
using socket_face::kResends;
using socket_face::kSending;
using socket_face::kState;

}  // namespace

void go(int fd, Socket& s) {
  auto sends = [&]() -> auto& { return s.open_file().sends; };  // fork moves them
  // A switch that is under way ends one way or the other; none begins after kLeaving has been seen.
  UntilOpen until(fd, s);
  // PAIR preload.gate: sees a switch that has ended
  while ((sends().load(std::memory_order_acquire) & Slot::kClosed) != 0) (void)until.wait(sends());
  if ((state_of(s.mine()) & kSending) == 0) {
    (void)silence(s.mine());  // who has not switched does not ring
    set_gone(s.mine());
    return;
  }
  const std::int32_t us = ::getpid();  // another thread may finish this
  while (!Slot::try_close(sends(), us)) {
    if (until.wait(sends())) continue;
    // Somebody was killed, or is stopped, in the middle of a send by TCP.
    CLAN_WARN("fd %d: a send that does not end keeps it from going back to TCP; it is reset", fd);
    reset_connection(fd);
    s.kernel_error.store(true);
    return set_gone(s.mine());
  }
  if ((state_of(s.theirs()) & kLeaving) == 0) {
    say_goodbye(fd, s);
    Slot::open(sends(), us);
    return;
  }
  s.open_file().resender.store(us);
  // PAIR preload.resending: publishes whose it is
  s.resending.store(true, std::memory_order_release);
  const Given given = given_back(fd, s);
  if (given.word == kDone || given.word == kReadsOn) {
    // Sending again what it still reads in the pipe would overtake that.
    if (given.word == kReadsOn) say_goodbye(fd, s, false);
    return resent(s, us);
  }
  if (given.lost) {
    log_line(
        LogLevel::kError,
        "fd %d: its peer goes back to TCP, and holds bytes of ours that cannot be had from it (another pid "
        "namespace?); the connection is reset (set CLAN_EXCEPT for this port)",
        fd);
    // By its part in this, done by us: the application is told of a reset, not of an end.
    add_state(s.theirs(), socket_face::kReset);
    s.kernel_error.store(true);
    set_gone(s.mine());
    resent(s, us);
    return reset_connection(fd);
  }
  add_state(s.mine(), kResends);
  say_goodbye(fd, s);
  resend(fd, s, given.memfd, us);
}

bool answer_leaving(int fd, Socket& s) {
  if (hooks.put_off(fd, s)) return false;
  const Undisturbed undisturbed;
  if (!s.moving.try_lock()) return true;  // another thread is at it
  KeepErrno keep;
  if ((state_of(s.mine()) & kGone) == 0) {
    CLAN_DEBUG("fd %d goes back to TCP, as its peer wants", fd);
    say_why(fd, s, reasons::Why::kTakenBack);
    go(fd, s);
  }
  s.moving.unlock();
  return true;
}

bool came_back(int fd, Socket& s) {
  if (s.reads_kernel()) return true;
  const std::uint64_t theirs = state_of(s.theirs());
  // An error that the kernel has told us it will not tell the application, and behind it nothing comes by
  // TCP.
  if ((theirs & kGone) == 0 || s.error_taken.load()) return false;
  KeepErrno keep;
  // Below, the doorbell is read that would remind us of it.
  if ((theirs & kLeaving) != 0 && (state_of(s.mine()) & kGone) == 0 && !answer_leaving(fd, s)) return false;
  if ((theirs & kSending) != 0) {
    if (!s.has_drained() || s.pipe.front() != PipeFront::kLeave) return false;
    if (!swallow_doorbells(fd, s) || s.error_taken.load()) return false;
  }
  read_kernel(fd, s);
  settle(s);
  say_why(fd, s, reasons::Why::kTakenBack);
  return true;
}

}  // namespace clan::preload
