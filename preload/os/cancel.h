// Threads with PTHREAD_CANCEL_ASYNCHRONOUS, which may be cancelled at any instruction. In the
// middle of a call of the library that would leave its locks taken, and no handler of C++ is there.
// So such a call is made as a cancellation point: it ends where it waits, or at its end.
#pragma once

namespace clan::preload {

/// For the calling thread. initial-exec: asked at each call.
extern constinit thread_local bool t_cancelled_at_once __attribute__((tls_model("initial-exec")));

/// Around a call of such a thread. A thread that is to be cancelled does not come back from the
/// second.
void defer_cancel();
void cancel_at_once();

}  // namespace clan::preload
