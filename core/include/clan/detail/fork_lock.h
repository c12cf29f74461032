// A mutex held over fork, so that the child finds whole what it guards. Thread-safe. For state of
// the whole process: mutex and function have static storage.
#pragma once

#include <pthread.h>

#include <mutex>

namespace clan {

/// From the first call on, every fork waits for `mutex`, and the child calls `in_child` before it
/// unlocks its copy. False, for good: no memory for the handlers.
template <std::mutex& mutex, void (*in_child)()>
bool hold_over_forks() {
  static const bool installed = ::pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); },
                                                 [] {
                                                   in_child();
                                                   mutex.unlock();
                                                 }) == 0;
  return installed;
}

}  // namespace clan
