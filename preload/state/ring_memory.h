// Memory that connections give back when they fall silent (ring_memory.cc).
#pragma once

#include <cerrno>
#include <cstdint>

#include "os/signals.h"
#include "state/socket.h"

namespace clan::preload {

/// The pipe is_large(): it is released when a thread sleeps.
void owe_memory(int fd, Socket& s);

/// Before a thread sleeps: what can be released. Nanoseconds until it is to be called again, -1:
/// nothing is left.
std::int64_t release_memory();

/// `sleep(ns)` is the kernel's wait for so long, -1 for ever, which returns 0 when that is over and
/// which a signal handler ends whatever its flags. Wakes up for memory that could not be released
/// before.
template <typename Sleep>
int sleep_releasing(std::int64_t ns, Sleep&& sleep) {
  const SignalSnapshot since;
  for (;;) {
    const std::int64_t next = ns == 0 ? -1 : release_memory();
    if (next < 0 || (ns >= 0 && ns <= next)) return sleep(ns);
    if (const int n = sleep(next); n != 0) return n;
    if (ns >= 0) ns -= next;
    if (since.handled()) {
      errno = EINTR;
      return -1;
    }
  }
}

}  // namespace clan::preload
