// How the two ends of a TCP connection find each other and agree on a pipe.
//
//   client (connected)                       server (accepted)
//   listens on an abstract socket named
//   after the connection's addresses,
//   before its 2nd send
//                                            connects to that name after its 5th, 10th, 20th… call,
//                      <── a sealed memfd ── asks the kernel which process listens, makes the pipe
//   asks the kernel which one sent it, maps
//   it, says so in the pipe (kAttached)
//
// Abstract names belong to a network namespace, vanish with their process, and cost a peer without
// CLAN nothing. Another user cannot pose as the other end: the kernel knows the owner of that end
// of the TCP connection (sock_diag), which must be the user at the other end of the rendezvous.
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// Make or take up an offer when it is time to: before a send and after a receive by TCP.
void before_send(int fd, Socket& s);
void after_receive(int fd, Socket& s);

/// Do the same where connections move at once (os/test_settings.h).
void before_receive(int fd, Socket& s);
void was_connected(int fd, Socket& s);
void was_accepted(int fd);

}  // namespace clan::preload
