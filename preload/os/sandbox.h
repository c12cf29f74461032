// Filters of system calls (seccomp) that were there before the program: they know the program's
// calls, not ours, and the default of systemd's SystemCallFilter= is to kill the process for any
// other.
//
// What connections in shared memory need is tried by a child that does nothing else, so that only
// the child dies. Making a child may be forbidden itself. So it is tried only when the program has
// made a process or a thread and lives, or was made under that filter; until then, and where
// something is refused, the library leaves all sockets alone.
#pragma once

#include <cstdint>

namespace clan::preload {

/// A filter is there, or it cannot be said: nothing but the program's own calls may be made before
/// permits_moving(). Asks once, by /proc/self/status.
bool is_filtered();
/// System calls that moved connections need pass. False may become true when the program forks or
/// makes a thread. Any thread; some ms, once, where there is a filter.
bool permits_moving();
/// So do those by which pipes are counted for the user (pipe_count.h), which connections can do
/// without.
bool permits_counting();
/// The call for which permits_moving() says no; 0: it is not known yet, or there is none.
struct Refusal {
  std::uint32_t call = 0;  ///< as clan/face/reason_text.h has it
  bool by_filter = false;
};
Refusal refusal_found();
/// Whether memory that others can read may be made, whether or not connections may move.
bool permits_memory();
/// The program has made a process, or a filter has let pass so much before exec.
void note_fork(bool in_child);

}  // namespace clan::preload
