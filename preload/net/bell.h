// The bell of a connection that is carried to another host: the carrier is in this process, and
// rings without a packet.
//
// When an end switches to its pipe it sends one byte by TCP, which lies unread in the other end's
// socket from then on. With SO_RCVLOWAT at 2 that byte does not make the descriptor readable. To
// ring is to set 1: the kernel then wakes all threads that sleep on the socket, in recv, poll,
// select or epoll, nested sets included. To take the bell away is to set 2. The Socket counts the
// rings, and how many of them have been taken.
//
// When the other end has gone back to TCP, the byte is read in front of what comes there
// (OpenFileState::parked_byte). From then on the pipe is as any other, and needs no carrier.
#pragma once

#include <cstdint>

#include "state/socket.h"

namespace clan::preload {

/// The pipe is about to be entered.
void begin_bells(Socket& s);
/// From now on nobody rings; the other end is going to be said to be gone.
void end_bells(int fd, Socket& s);

/// By a thread of the carrier.
void ring_here(int fd, Socket& s);

/// The rings up to `limit` are taken away. False: nobody rings any more.
bool take_bells(int fd, Socket& s, std::uint64_t limit);

/// Takes the parked byte when nothing is to be waited for any more: unread it would make this end a
/// reset.
void take_parked_byte(int fd, Socket& s);

/// Sends the byte that lies there from now on, behind all that this end has sent by TCP. To be
/// called when no send is under way. False: TCP has no room for it, or is gone.
bool park_byte(int fd);

}  // namespace clan::preload
