// sigaction(), signal() and their kin: the library's handlers call the application's (signals.h).
#pragma once

#include <signal.h>

namespace clan::preload {

/// Does what sigaction() does, by the C library's.
int set_action(int number, const struct sigaction* action, struct sigaction* old);

/// Whether the action, as the kernel has it, calls the application's handler by the library's,
/// which notes that it ran.
bool is_wrapped(const struct sigaction& action);

/// Does what signal() and its kin do, by the C library's function. `restarts`: as SA_RESTART.
using SetHandler = sighandler_t (*)(int, sighandler_t);
sighandler_t set_handler(int number, sighandler_t handler, bool restarts, SetHandler call);

/// Tells whether handlers that signal() sets restart calls.
bool signal_restarts(int number);
/// Notes that siginterrupt() has changed that, also for the handler that is set.
void note_interrupts(int number, bool interrupts);

/// Enclose fork(): a child finds no handler half changed.
void lock_handlers();
void unlock_handlers();

}  // namespace clan::preload
