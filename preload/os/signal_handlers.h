// The application's signal handlers, which ours call: see signals.h. What sigaction(), signal() and
// their kin do.
#pragma once

#include <signal.h>

namespace clan::preload {

/// sigaction(), by the C library's.
int set_action(int number, const struct sigaction* action, struct sigaction* old);

/// What signal() and its like do, by the C library's function. A child of vfork() has handlers of
/// its own, but not a table. `restarts`: as SA_RESTART.
using SetHandler = sighandler_t (*)(int, sighandler_t);
sighandler_t set_handler(int number, sighandler_t handler, bool restarts, SetHandler call);

/// Whether handlers that signal() sets restart calls. note_interrupts(): siginterrupt() has changed
/// that, also for the handler that is set.
bool signal_restarts(int number);
void note_interrupts(int number, bool interrupts);

/// Over fork(): a child finds no handler half changed, nor the lock of that taken.
void lock_handlers();
void unlock_handlers();

}  // namespace clan::preload
