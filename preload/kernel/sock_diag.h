// What the kernel says of TCP sockets (sock_diag, what `ss` asks): which user owns one, where it
// listens, what went by it.
//
// A SockDiag asks in one network namespace: our own, or, with a socket that another process has
// sent us, the one in which that socket was made. Where our own is refused (no AF_NETLINK),
// /proc/self/net/tcp answers for connections, without counters. Nothing here sleeps.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>

#include "clan/detail/tcp_diag.h"

namespace clan::preload {

using Endpoint = TcpEnd;
bool endpoint_of(const sockaddr_storage& from, Endpoint* to);
Endpoint endpoint_of(const sockaddr_in& from);

/// Both ends of a connection, as the owner of `local` sees them.
struct Route {
  Endpoint local, remote;
  std::uint32_t interface = 0;  ///< of link-local addresses
};
/// False: not connected, or not TCP.
bool route_of(int fd, Route* route);

class SockDiag {
 public:
  /// Opens one for the process's own network namespace.
  SockDiag();
  /// Takes a socket that came from another process, and is genuine().
  explicit SockDiag(int passed) : netlink_(passed) {}
  ~SockDiag();
  SockDiag(const SockDiag&) = delete;
  SockDiag& operator=(const SockDiag&) = delete;

  int fd() const { return netlink_; }
  /// Gives the descriptor up.
  int release();
  /// A sock_diag socket: what it answers is the kernel's word, as ask() believes nobody else.
  static bool genuine(int fd);

  enum class Answer { kNone, kFound, kUnknown };
  struct Found {
    sa_family_t family = 0;  ///< of the socket; AF_INET6 may have mapped addresses
    std::uint8_t state = 0;  ///< TCP_ESTABLISHED …
    uid_t uid = 0;           ///< as the user namespace has it in which the SockDiag was made
    std::uint32_t inode = 0;
    Endpoint local, remote;
    bool counted = false;                             ///< the kernel gave the counters that follow
    std::uint64_t sent = 0, acked = 0, received = 0;  ///< bytes; those sent again count once
  };
  /// The socket at `local` that is connected to `remote`, or that listens there.
  Answer ask(const Endpoint& local, const Endpoint& remote, std::uint32_t interface, Found* found);
  /// Tells whether the connected socket `fd`, whose ends are `route`, is in this network namespace.
  /// A program that enters several has sockets that are not, and another connection may have the
  /// same ends here: what is asked of it, and names made of its addresses, would be that one's.
  Answer has(int fd, const Route& route);

 private:
  int netlink_;
  bool is_ours_ = false;
};

/// Finds the connected socket at `local` whose other end is `remote` in /proc/self/net/tcp or tcp6,
/// for a process that is refused sock_diag. The kernel says there what it says by sock_diag of the
/// sockets of the reader's network namespace. A file that is not procfs's is not believed. It is
/// slower: all sockets are read until the one is found, so a namespace with very many is not
/// searched to the end. False: there is none, or it cannot be said.
bool find_in_tcp_tables(const Endpoint& local, const Endpoint& remote, SockDiag::Found* found);

/// Somebody in our own network namespace has the other end. Asks the kernel, unless `remote` was
/// not here in the last five seconds. `now_ns`: monotonic_ns().
bool other_end_is_here(const Route& route, std::uint64_t now_ns);

}  // namespace clan::preload
