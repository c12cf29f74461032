#include "tcp/ring.h"

#include <sys/timerfd.h>

#include <cerrno>

#include "clan/face/socket_face.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"

namespace clan::preload {
namespace {

// A full pipe wakes too. A bell that cannot be written is a timer.
bool ring_by(int bell) {
  const char byte = 0;
  if (sys::call(SYS_write, bell, &byte, 1) >= 0 || errno == EAGAIN) return true;
  const itimerspec at_once{{0, 0}, {0, 1}};
  return errno == EINVAL && sys::call(SYS_timerfd_settime, bell, 0, &at_once, nullptr) == 0;
}

}  // namespace

bool ring_bell(Socket& s) {
  return (state_of(s.theirs()) & socket_face::kClosed) != 0 || write_bell(s);
}

bool write_bell(Socket& s) {
  const DeferSignals undisturbed;
  const KeepErrno keep;
  s.ringing.lock();  // keeps the number from being reused meanwhile
  const int bell = s.others_bell.get();
  const bool rung = bell >= 0 && ring_by(bell);
  s.ringing.unlock();
  // relaxed: for people to read
  if (rung) s.mine().words[socket_face::kWakeups].fetch_add(1, std::memory_order_relaxed);
  return rung;
}

}  // namespace clan::preload
