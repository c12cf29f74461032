// What TCP still carries of a moved connection: the bytes from before the switch of each direction.
#pragma once

#include <cstddef>

#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"
#include "state/face.h"
#include "state/socket.h"
#include "tcp/call_gate.h"

namespace clan::preload {

/// Does switch_sending() after its quick check.
bool switch_sending_now(int fd, Socket& s);

/// Switches this direction to the pipe if the peer reads there. True: it is switched.
inline bool switch_sending(int fd, Socket& s) {
  return (state_of(s.mine()) & socket_face::kSending) != 0 || switch_sending_now(fd, s);
}

/// Returns how many of the application's bytes TCP still has to deliver; 0 sets drained; <0 with
/// errno: unknown. `certain`: of the kernel's queue, surely the application's. Under Draining.
ssize_t left_in_tcp(int fd, Socket& s, std::size_t* certain);

/// The lock of all processes of the end for reading TCP bytes from before the switch: it closes the
/// counter of receives.
class Draining : ClosedGate {
 public:
  explicit Draining(Socket& s) : ClosedGate(s.open_file().receives) {}
};

/// Notes what recv() returned at the end: the peer's end, a shutdown of reading at this end,
/// perhaps by another process, or an error.
void note_end(int fd, Socket& s, ssize_t n);

/// Whether TCP bytes may be left to read.
inline bool reads_tcp(const Socket& s) { return !s.has_drained(); }  // PAIR preload.drained

/// Whether this end sends by TCP: not in the pipe yet, or back from it.
inline bool sends_tcp(const Socket& s) {
  return (state_of(s.mine()) & (socket_face::kSending | socket_face::kGone)) !=
         socket_face::kSending;
}

}  // namespace clan::preload
