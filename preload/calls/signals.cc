// sigaction() and its older kin (os/signals.h), and the cancellation of threads.
#include <pthread.h>
#include <signal.h>

#include "calls/interpose.h"
#include "os/real.h"
#include "os/signal_handlers.h"

using namespace clan::preload;

CLAN_INTERPOSE int sigaction(int number, const struct sigaction* action,
                             struct sigaction* old) noexcept {
  return set_action(number, action, old);
}
CLAN_INTERPOSE int __sigaction(int number, const struct sigaction* action,
                               struct sigaction* old) noexcept {
  return sigaction(number, action, old);
}

CLAN_INTERPOSE sighandler_t signal(int number, sighandler_t handler) noexcept {
  return set_handler(number, handler, signal_restarts(number), real().signal);
}
CLAN_INTERPOSE sighandler_t bsd_signal(int number, sighandler_t handler) noexcept {
  return signal(number, handler);
}
CLAN_INTERPOSE sighandler_t ssignal(int number, sighandler_t handler) noexcept {
  return signal(number, handler);
}
CLAN_INTERPOSE sighandler_t __sysv_signal(int number, sighandler_t handler) noexcept {
  return set_handler(number, handler, false, real().__sysv_signal);
}
CLAN_INTERPOSE sighandler_t sysv_signal(int number, sighandler_t handler) noexcept {
  return __sysv_signal(number, handler);
}
CLAN_INTERPOSE sighandler_t sigset(int number, sighandler_t handler) noexcept {
  return set_handler(number, handler, false, real().sigset);
}
CLAN_INTERPOSE int siginterrupt(int number, int interrupts) noexcept {
  const int rc = real().siginterrupt(number, interrupts);
  if (rc == 0) note_interrupts(number, interrupts != 0);
  return rc;
}

CLAN_INTERPOSE int pthread_setcanceltype(int type, int* old) {
  const bool before = t_cancelled_at_once;
  // First, as the C library may cancel the thread, whose handlers make calls, and not return.
  if (type == PTHREAD_CANCEL_ASYNCHRONOUS) t_cancelled_at_once = true;
  const int rc = real().pthread_setcanceltype(type, old);
  if (rc != 0) t_cancelled_at_once = before;
  if (rc == 0 && type == PTHREAD_CANCEL_DEFERRED) t_cancelled_at_once = false;
  return rc;
}
