// Connections over exec: what the program that is executed finds of them.
#pragma once

namespace clan::preload {

/// Connections go on in the program, or go back to TCP. Returns the variable that tells it of them,
/// or nullptr. Not for two threads at once: one of them would have no use for it.
char* hand_on_connections(const char* path, char* const* environment);

/// exec has failed: the pipes are ours alone again.
void take_pipes_back();
/// The exec has failed: this process is among the users of its slots again.
void use_slots_again();

/// Somebody without the library is going to have what is not closed at exec.
void take_all_back();

/// At the start: takes the connections that the program before exec passed on.
void take_over_connections();

}  // namespace clan::preload
