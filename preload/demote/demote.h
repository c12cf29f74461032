// A moved connection goes back to TCP: before a program that knows nothing of pipes gets it (exec,
// posix_spawn), before urgent data, before SIGIO.
//
//   leaver L                                         other end Y
//   says kLeaving
//   puts its last record into the pipe, rings, kGone
//                                                    notices kLeaving at its next check of the
//                                                    socket last record, kGone
//   reads the pipe to its end, then TCP
//
// Where L goes on reading itself, that is all. Where L is about to be another program, nobody reads
// the pipe any more: Y sends by TCP what is left there.
//
// Where nothing is unread, such an L does not wait for Y. Otherwise it waits until Y's program makes
// a call, which L's ring wakes it for if it sleeps in one, or for ten seconds, and then resets.
//
// A direction that never switched has nothing to take back. Both ends may leave at once.
#pragma once

#include "clan/face/reasons.h"
#include "state/socket.h"

namespace clan::preload {

/// Takes the connection back to TCP, for good. `to_others`: a program that does not know of pipes
/// is going to use the descriptor, so it is clean when this returns, or reset when that cannot be
/// had. Otherwise what is sent from now on goes by TCP, and what is received does when the other
/// end has noticed.
void leave_pipe(int fd, bool to_others, reasons::Why why);

/// Goes back to TCP if the other end has never come into the pipe. False: it has, or somebody is at
/// it.
bool leave_alone(int fd, Socket& s);

/// The other end took our pipe, or was about to, and has not come into it since. It will not any
/// more after so many of our calls that moved bytes; without a pipe they cost less.
void give_up_on_peer(int fd, Socket& s);

/// Takes all connections to other hosts back before a fork, as no component carries them in the
/// child, and waits until the other hosts have done their part. What has not been read stays in its
/// pipe.
void leave_all_remote();

/// Does leave_pipe(fd, false) for a socket whose bells are about to be closed. False: not now, as
/// another thread decides where it goes.
bool leave_without_bells(int fd, Socket& s);

/// Keeps it on TCP, or does leave_pipe(fd, true) if it has moved.
void never_move(int fd, Socket& s, reasons::Why why);

/// The same for a socket that the kernel alone is to wait for. It stays in its pipe where a peer
/// that has closed has left bytes there: its end of TCP keeps the socket ready.
void leave_for_kernel(int fd, Socket& s, reasons::Why why);

/// All connections of this process go back to TCP, and those there are stay there. Comes back when
/// none is in a pipe any more.
void leave_all_pipes(reasons::Why why);

/// Those that are in a pipe go back, without a wait for it.
void take_back_moved(reasons::Why why);

}  // namespace clan::preload
