// Filters of system calls (seccomp) that are older than the program. They know the program's calls,
// not ours, and by default systemd's SystemCallFilter= kills the process for any other.
//
// So a child tries the calls that moved connections need, and only the child dies. To make a child
// may be forbidden itself, so the library waits until the program has made a process or a thread,
// or was made under that filter. Until then, and where a call is refused, no connection moves.
#pragma once

#include <cstdint>

namespace clan::preload {

/// Tells whether there is, or may be, a filter that is untried or refuses: then only the program's
/// own calls may be made. Reads /proc/self/status once.
bool is_filtered();
/// Tells whether the calls that moved connections need pass. False may become true when the program
/// forks or makes a thread. Any thread; takes some ms, once, if there is a filter.
bool permits_moving();
/// Tells whether also those pass that count pipes for the user (pipe_count.h), which are optional.
bool permits_counting();
/// The same of those by which a process takes another one's socket (demote_for_peer.cc).
bool permits_taking();
/// The call that is refused; 0: none, or not known yet.
struct Refusal {
  std::uint32_t call = 0;  ///< as clan/face/reason_text.h has it
  bool by_filter = false;
};
Refusal refusal_found();
/// Tells whether memory that others can read may be made, even if connections may not move.
bool permits_memory();
/// Notes that the program has made a process.
void note_fork(bool in_child);

}  // namespace clan::preload
