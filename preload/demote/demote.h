// A moved connection goes back to TCP: before a program that knows no pipes gets it (exec,
// posix_spawn), before urgent data, before SIGIO.
//
//   leaver L                                         peer P
//   sets kLeaving
//   puts its last record into the pipe, rings, sets kGone
//                                                    notices kLeaving at its next check of the
//                                                    socket: last record, kGone
//   reads the pipe to its end, then TCP
//
// If L goes on reading, that is all. If it is about to become another program, nobody will read the
// pipe: P sends what is left in it again, by TCP. Such an L waits for P only if bytes are unread:
// until P's program makes a call (L's ring wakes it), for at most ten seconds; then it resets.
//
// A direction that never switched has nothing to take back. Both ends may leave at once.
#pragma once

#include "clan/face/reasons.h"
#include "state/socket.h"

namespace clan::preload {

/// Takes the connection back to TCP for good. `to_others`: a program that knows no pipes will use
/// the descriptor, so TCP has everything on return, or the connection is reset. Otherwise sends go
/// by TCP from now on, and receives once the peer has noticed.
void leave_pipe(int fd, bool to_others, reasons::Why why);

/// Goes back to TCP if the peer never entered the pipe. False: it has, or a thread moves it now.
bool leave_alone(int fd, Socket& s);

/// Leaves a pipe that the peer has not entered after so many calls that moved bytes: without it
/// they cost less.
void give_up_on_peer(int fd, Socket& s);

/// Takes all remote connections back before a fork, as the child has no component, and waits for
/// the other hosts' part. Unread bytes stay in their pipes.
void leave_all_remote();

/// Does leave_pipe(fd, false) for a socket whose bells are about to close. False: another thread
/// moves it now.
bool leave_without_bells(int fd, Socket& s);

/// Keeps it on TCP; if it has moved, does leave_pipe(fd, true).
void never_move(int fd, Socket& s, reasons::Why why);

/// Does the same for a socket that only the kernel is to wait for. It stays in its pipe if a peer
/// that has closed left bytes there: the end of TCP keeps it ready.
void leave_for_kernel(int fd, Socket& s, reasons::Why why);

/// Takes all connections of this process back, and keeps others on TCP. Returns when no pipe is
/// used.
void leave_all_pipes(reasons::Why why);

/// Takes those in a pipe back, without waiting.
void take_back_moved(reasons::Why why);

}  // namespace clan::preload
