// What TCP still carries of a connection that has moved: the bytes from before the switch, of each
// direction by itself.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"
#include "state/face.h"
#include "state/socket.h"
#include "tcp/call_gate.h"

namespace clan::preload {

/// Whether another thread has closed the descriptor of a call; others of the same socket may be
/// left.
inline bool closed_under_us() { return errno == EBADF || errno == ENOTSOCK; }

/// As switch_sending(), past the glance.
bool switch_sending_now(int fd, Socket& s);

/// Lets this direction switch to the pipe when the other end reads there. True: it has.
inline bool switch_sending(int fd, Socket& s) {
  return (state_of(s.mine()) & socket_face::kSending) != 0 || switch_sending_now(fd, s);
}

/// App bytes that are still to be read from TCP. <0: cannot tell, errno. Sets drained when there
/// are none. `certain`: how many of those in the kernel's queue are the application's for sure.
/// Under Draining.
ssize_t left_in_tcp(int fd, Socket& s, std::size_t* certain);

/// The lock under which bytes of TCP from before the switch are read. Threads of all processes of
/// the end take it, as the one that closes the counter of receives.
class Draining {
 public:
  explicit Draining(Socket& s) : gate_(s.open_file().receives) {}

 private:
  const ClosedGate gate_;
};

/// What a recv() says of the connection's end, which may be that this end, perhaps by a process
/// that shares it, reads no more.
void note_end(int fd, Socket& s, ssize_t n);

/// The socket still has TCP bytes to read, or may have.
inline bool reads_tcp(const Socket& s) { return !s.has_drained(); }  // PAIR preload.drained

/// It sends by TCP: not in the pipe yet, or not any more.
inline bool sends_tcp(const Socket& s) {
  return (state_of(s.mine()) & (socket_face::kSending | socket_face::kGone)) !=
         socket_face::kSending;
}

}  // namespace clan::preload
