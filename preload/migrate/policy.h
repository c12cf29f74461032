// How the two ends of a TCP connection find each other and agree on a pipe.
//
//   client (connected)                                server (accepted)
//   listens on an abstract socket named after the
//   connection's addresses, before its 2nd send
//                                                     connects to that name after its 5th, 10th,
//                                                     20th… call
//                          <── a sealed memfd ──      asks the kernel which process listens, makes
//                          the pipe
//   asks the kernel which one sent it, maps it,
//   says so in the pipe (kAttached)
//
// Abstract names are of one network namespace, vanish with their process, and cost a peer without
// CLAN nothing. Another process that takes the name is found out: the kernel knows the owner of the
// other end of the TCP connection (sock_diag), and it must be the user at the other end of the
// rendezvous.
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// Before a send and after a receive that went by TCP: makes or takes up an offer when it is time
/// to.
void before_send(int fd, Socket& s);

void after_receive(int fd, Socket& s);

/// Where connections move at once, in tests (testing.h), before a receive by TCP, after connect()
/// and accept() too.
void before_receive(int fd, Socket& s);

void was_connected(int fd, Socket& s);
void was_accepted(int fd);

}  // namespace clan::preload
