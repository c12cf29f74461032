#include "state/open_file.h"

#include <sched.h>

#include <cstdint>
#include <cstring>

#include "clan/clock.h"
#include "os/signals.h"
#include "state/socket.h"

namespace clan::preload {
namespace {

// Whoever comes to the socket's own counters from now on sees that he has to look where they are
// now. False: a call is under way.
bool close_for_good(Socket& s) {
  constexpr std::uint64_t kPatienceNs = 1'000'000'000;
  const std::uint64_t end = monotonic_ns() + kPatienceNs;
  Slot& own = s.own_slot;
  const std::int32_t me = thread_id();
  do {
    if (Slot::try_close(own.receives, me)) {
      if (Slot::try_close(own.sends, me)) return true;
      Slot::open(own.receives, me);
    }
    const std::uint64_t counted = own.receives.load() | own.sends.load();
    // Of a socket that has moved nobody is in the kernel, and a switch is soon over.
    if (!s.shared() && (counted & Slot::kClosed) == 0 && counted != 0) return false;
    if (s.resending.load()) break;  // that may take long
    sched_yield();
  } while (monotonic_ns() < end);
  return false;
}

}  // namespace

bool share_slot(Socket& s, Slot* shared) {
  // A call that is under way in the kernel is counted there, and not here: no move, then.
  const bool closed = close_for_good(s);
  if (!closed && !s.shared()) s.own_slot.pinned = 1;
  if (!closed && s.resending.load()) {  // who does that opens the new counter
    while (!Slot::try_close(s.own_slot.receives, thread_id())) sched_yield();
    shared->resender = s.own_slot.resender.load();
    shared->sends = Slot::closed_by(shared->resender.load());
  }
  shared->pipe_pid = s.own_slot.pipe_pid.load();
  shared->pipe_fd = s.own_slot.pipe_fd.load();
  shared->pipe_end = s.own_slot.pipe_end.load();
  shared->pinned = s.own_slot.pinned.load();
  shared->to_follow = s.own_slot.to_follow.load();
  s.slot.store(shared);
  return shared->pinned.load() == 0;
}

bool leave_slot(Socket& s) {
  Slot& slot = s.open_file();
  if (!s.not_to_follow.exchange(true)) slot.to_follow.fetch_sub(1);
  const bool others = slot.to_follow.load() > 0 || Slot::on_its_way(slot.held.load()) > 0;
  if (!s.left_slot.exchange(true)) slot.held.fetch_sub(1);
  return others;
}

}  // namespace clan::preload
