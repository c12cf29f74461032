#include "migrate/far_leave.h"

#include <cstdint>

#include "clan/clock.h"
#include "clan/socket_face.h"
#include "far/bell.h"
#include "far/carrier.h"
#include "migrate/answer.h"
#include "migrate/demote.h"
#include "migrate/demote_end.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/fd_table.h"
#include "state/withdraw.h"
#include "stream/aborted.h"

namespace clan::preload {
namespace {

using reasons::Why;

constexpr std::uint64_t kLeaveNs = 2'000'000'000;  ///< the other host does its part

bool is_back(const Socket& s) { return !is_far(s) || far_stage(s) == CarrierStage::kOver; }

void lose_far(int fd, Socket& s) {
  break_off(fd, s, "the other host does not do its part in going back to TCP");
}

void wait_alone(int fd, Socket& s, std::uint64_t until_ns) {
  const Undisturbed undisturbed;
  s.moving.lock();
  wait_for_far_end(fd, s, until_ns);
  s.moving.unlock();
}

}  // namespace

void wait_for_far_end(int fd, Socket& s, std::uint64_t until_ns) {
  if (until_ns == 0) until_ns = monotonic_ns() + kLeaveNs;
  for (; !is_back(s); nap()) {
    (void)go_now(fd, s);
    wake_carrier(s);
    if (monotonic_ns() < until_ns) continue;
    lose_far(fd, s);
    break;
  }
}

void leave_far(int fd, Socket& s, Why why) {
  if (!is_far(s)) return;
  const Undisturbed undisturbed;
  KeepErrno keep;
  if (s.shared()) {
    if (is_back(s)) return;
    leave_pipe(fd, false, why);
    return wait_alone(fd, s, 0);
  }
  s.moving.lock();
  if (s.state_now() == Socket::State::kOffered) stay(fd, s, why);  // which lets go of it
  s.moving.unlock();
}

// Those that have moved are told first, so that they go back together.
void leave_all_far() {
  if (!carrier_is_loaded()) return;
  KeepErrno keep;
  std::uint64_t until = monotonic_ns() + kLeaveNs;
  for_each_socket(
      [](int fd, Socket& s, void*) {
        if (is_far(s) && s.shared() && !is_back(s)) leave_pipe(fd, false, Why::kForked);
      },
      nullptr);
  for_each_socket(
      [](int fd, Socket& s, void* at) {
        if (!is_far(s)) return;
        s.shared() ? wait_alone(fd, s, *static_cast<std::uint64_t*>(at))
                   : leave_far(fd, s, Why::kForked);
      },
      &until);
}

void end_far() {
  if (!carrier_is_loaded()) return;
  for_each_socket(
      [](int fd, Socket& s, void*) {
        if (!is_far(s)) return;
        if (!s.shared()) return leave_far(fd, s, Why::kOfferLost);
        if (s.left_at_exit.set_first()) {
          add_state(s.mine(), socket_face::kClosed);
          (void)s.pipe.end_sending();
          take_parked_byte(fd, s);
          wake_carrier(s);
        }
      },
      nullptr);
  finish_carrier();
}

}  // namespace clan::preload
