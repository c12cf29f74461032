// Memory that connections give back when they fall silent (ring_memory.cc).
#pragma once

#include <cerrno>
#include <cstdint>

#include "os/signals.h"
#include "state/socket.h"

namespace clan::preload {

/// Notes that the pipe is_large(), so that a sleep releases its memory.
void owe_memory(int fd, Socket& s);

/// Releases what it can, before a thread sleeps. Returns the nanoseconds until the next call; -1:
/// nothing is left.
std::int64_t release_memory();

/// Sleeps by `sleep(ns)`, and wakes up to release memory. `sleep` is the kernel's wait (-1: no
/// limit): 0 on timeout, and any signal handler ends it.
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
