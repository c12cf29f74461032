// How threads are cancelled.
#include <pthread.h>

#include "calls/interpose.h"
#include "os/real.h"

using namespace clan::preload;

CLAN_INTERPOSE int pthread_setcanceltype(int type, int* old) {
  const bool before = t_cancelled_at_once;
  // First: the C library may cancel the thread, whose handlers make calls, and not come back.
  if (type == PTHREAD_CANCEL_ASYNCHRONOUS) t_cancelled_at_once = true;
  const int rc = real().pthread_setcanceltype(type, old);
  if (rc != 0) t_cancelled_at_once = before;
  if (rc == 0 && type == PTHREAD_CANCEL_DEFERRED) t_cancelled_at_once = false;
  return rc;
}
