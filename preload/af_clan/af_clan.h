// AF_CLAN: sockets by name (clan/af_clan.h), made of the kernel's sockets.
//
//   SOCK_STREAM      loopback TCP, which moves into a pipe like any other. The hash of a name gives
//                    a place in 127/8, so the kernel keeps names unique, refuses those without a
//                    listener and frees those of the dead.
//   SOCK_SEQPACKET,  AF_UNIX sockets with the abstract name "clan1/af/p/NAME" or "clan1/af/d/NAME":
//   SOCK_DGRAM       the kernel carries their messages
//
//        "jobs" ── hash ──> 127.a.b.c : 32768 + d     38 bits; d is in the kernel's range for
//                                                     clients, where servers that listen on all
//                                                     addresses are rare
//
// If there is one, the name's next place is taken, of kPlaces. A client asks the kernel (sock_diag)
// which socket listens at a place, and skips those bound to another address.
//
// af_clan_table.h has the descriptors that are AF_CLAN.
#pragma once

#include <sys/socket.h>

#include "af_clan/af_clan_table.h"

namespace clan::preload {

/// Returns the domain to call socket() with instead, or -1 with errno. Then af_clan_appeared()
/// enters the socket in the table. False: no memory.
int af_clan_kernel_domain(int type, int protocol);
bool af_clan_appeared(int fd, int type);

/// Do what the calls of these names do, on descriptors that are AF_CLAN.
int af_clan_bind(int fd, const sockaddr* address, socklen_t size);
int af_clan_listen(int fd, int backlog);
/// `address` is not AF_UNSPEC, for which a stream is TCP.
int af_clan_connect(int fd, const sockaddr* address, socklen_t size);
int af_clan_getsockname(int fd, sockaddr* address, socklen_t* size);
int af_clan_getpeername(int fd, sockaddr* address, socklen_t* size);
/// Enters `fd`, which has been accepted from `listener`, and returns it with its peer's name.
int af_clan_accepted(int listener, int fd, sockaddr* address, socklen_t* size);

/// Do the same for messages of packet sockets, whose names they translate.
ssize_t af_clan_sendto(int fd, const void* data, size_t n, int flags, const sockaddr* to,
                       socklen_t size);
ssize_t af_clan_recvfrom(int fd, void* data, size_t n, int flags, sockaddr* from, socklen_t* size);
ssize_t af_clan_sendmsg(int fd, const msghdr* message, int flags);
ssize_t af_clan_recvmsg(int fd, msghdr* message, int flags);
int af_clan_sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags);
int af_clan_recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout);

}  // namespace clan::preload
