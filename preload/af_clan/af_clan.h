// AF_CLAN: sockets by name (clan/af_clan.h), made of sockets the kernel has.
//
//   SOCK_STREAM      loopback TCP, which moves into a pipe like any other. A name is a place in
//   127/8: its
//                    hash gives address and port, so the kernel itself keeps names unique, refuses
//                    those nobody has and takes them back from the dead. Nothing else is held open,
//                    no list kept.
//   SOCK_SEQPACKET,  AF_UNIX sockets with the abstract name "clan1/af/p/NAME" or "clan1/af/d/NAME":
//   SOCK_DGRAM       the kernel carries their messages
//
//        "jobs" ── hash ──> 127.a.b.c : 32768 + d     38 bits; d's range is the kernel's for
//                                                     clients, where no server that listens on
//                                                     all addresses should live
//
// Should one live there all the same, the name's next place is taken, of kPlaces. A client asks
// the kernel (sock_diag) which socket listens at a place, and passes by those bound to another
// address.
//
// Which descriptors are AF_CLAN is in a table: af_clan_table.h.
#pragma once

#include <sys/socket.h>

#include "af_clan/af_clan_table.h"

namespace clan::preload {

/// The domain socket() is to be called with instead, or -1 with errno; then af_clan_appeared(),
/// which is false when there is no memory.
int af_clan_kernel_domain(int type, int protocol);
bool af_clan_appeared(int fd, int type);

/// Act on descriptors that are AF_CLAN, and return what the calls of these names return.
int af_clan_bind(int fd, const sockaddr* address, socklen_t size);
int af_clan_listen(int fd, int backlog);
/// Not to nowhere (AF_UNSPEC), as which a stream is one of TCP like others.
int af_clan_connect(int fd, const sockaddr* address, socklen_t size);
int af_clan_getsockname(int fd, sockaddr* address, socklen_t* size);
int af_clan_getpeername(int fd, sockaddr* address, socklen_t* size);
/// `fd` has been accepted from `listener`: tells its peer's name.
int af_clan_accepted(int listener, int fd, sockaddr* address, socklen_t* size);

/// Translate the names in the messages of packet sockets.
ssize_t af_clan_sendto(int fd, const void* data, size_t n, int flags, const sockaddr* to,
                       socklen_t size);
ssize_t af_clan_recvfrom(int fd, void* data, size_t n, int flags, sockaddr* from, socklen_t* size);
ssize_t af_clan_sendmsg(int fd, const msghdr* message, int flags);
ssize_t af_clan_recvmsg(int fd, msghdr* message, int flags);
int af_clan_sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags);
int af_clan_recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout);

}  // namespace clan::preload
