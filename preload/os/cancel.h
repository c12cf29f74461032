// Threads with PTHREAD_CANCEL_ASYNCHRONOUS may be cancelled at any instruction, and the library's
// locks would stay taken. So a call of the library is a cancellation point instead: the thread ends
// where the call waits, or at its end.
#pragma once

#include <pthread.h>

#include "os/real.h"

namespace clan::preload {

/// For the calling thread. initial-exec: read at each call.
inline constinit thread_local bool t_cancelled_at_once __attribute__((tls_model("initial-exec"))) =
    false;

/// Enclose a call of such a thread. cancel_at_once() does not return if the thread is cancelled.
/// Not inlined: other threads' calls would save registers for them.
[[gnu::noinline]] inline void defer_cancel() {
  real().pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, nullptr);
}
[[gnu::noinline]] inline void cancel_at_once() {
  real().pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, nullptr);
}

}  // namespace clan::preload
