// Descriptors that are passed on by SCM_RIGHTS before their connection has moved.
//
// Each process that has the open file has to know before it moves. The sender cannot say which one
// will receive the descriptor, nor whether that program loads the library. So it puts the socket's
// OpenFileState where others can find it, in a memfd, and counts the descriptor as on its way; the
// receiver finds the slot by what the kernel says of the socket, and claims it. From then on both
// share the slot as after a fork, and either may move the connection, or close.
//
//   sender      counts one on its way | sendmsg                     nobody moves it
//   receiver                                 recvmsg | finds the slot, claims     any that has
//   it may
//
// A receiver without the library, or one that may not or does not want to share memory, claims
// nothing, and the connection stays on TCP. So it does when there is no room for the slot.
//
// Those that have moved bring their pipes: share/pipes_along.h.
#pragma once

#include <span>

namespace clan::preload {

struct Socket;

/// A descriptor from another process, by the AF_UNIX socket `through`: if its connection has moved,
/// follows it; if not, it may move when all that have it know of each other. `peeked`: it will be
/// received again. `pipes`: memfds that came along, and stay the caller's.
void adopt_passed(int fd, int through, bool peeked, std::span<const int> pipes = {});

/// pidfd_getfd(), by which a process takes another one's descriptor without its knowledge. If its
/// connection has moved it goes back to TCP.
int take_from(int pidfd, int target, unsigned flags);

/// Somebody else is going to have the descriptor too, by the AF_UNIX socket `through`.
void pass_on(int fd, int through);

/// It has not been sent.
void not_sent(int fd);

}  // namespace clan::preload
