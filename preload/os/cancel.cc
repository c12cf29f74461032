#include "os/cancel.h"

#include <pthread.h>

#include "os/real.h"

namespace clan::preload {

constinit thread_local bool t_cancelled_at_once = false;

void defer_cancel() { real().pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, nullptr); }

void cancel_at_once() { real().pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, nullptr); }

}  // namespace clan::preload
