// What the kernel says of TCP sockets by sock_diag, as `ss` asks it: the owner, the addresses, the
// counters.
//
// A SockDiag asks in the network namespace in which its netlink socket was made: our own, or that
// of the process which has sent us the socket. Where AF_NETLINK is refused, /proc/self/net/tcp
// answers for our own connections, without counters. Nothing here sleeps.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>

#include "clan/detail/tcp_diag.h"
#include "kernel/tcp.h"

namespace clan::preload {

using Endpoint = TcpEnd;
bool endpoint_of(const sockaddr_storage& from, Endpoint* to);
Endpoint endpoint_of(const sockaddr_in& from);

/// Both ends of a connection, as the owner of `local` sees them.
struct Route {
  Endpoint local, remote;
  std::uint32_t interface = 0;  ///< of link-local addresses
};
/// Reads the ends of a connection. False: not connected, or not TCP.
bool route_of(int fd, Route* route);

class SockDiag {
 public:
  /// For the process's own network namespace.
  SockDiag();
  /// Takes a netlink socket of another process that is genuine().
  explicit SockDiag(int passed) : netlink_(passed) {}
  ~SockDiag();
  SockDiag(const SockDiag&) = delete;
  SockDiag& operator=(const SockDiag&) = delete;

  int fd() const { return netlink_; }
  /// Gives the descriptor up.
  int release();
  /// Tells whether it is a sock_diag socket: then ask() can trust the answer.
  static bool genuine(int fd);

  enum class Answer { kNone, kFound, kUnknown };
  struct Found : TcpCounters {
    sa_family_t family = 0;  ///< of the socket; AF_INET6 may have mapped addresses
    std::uint8_t state = 0;  ///< TCP_ESTABLISHED …
    uid_t uid = 0;           ///< in the user namespace of the netlink socket
    std::uint32_t inode = 0;
    Endpoint local, remote;
  };
  /// Asks for the socket at `local` that is connected to `remote`, or that listens there.
  Answer ask(const Endpoint& local, const Endpoint& remote, std::uint32_t interface, Found* found);
  /// Tells whether the connected socket `fd`, whose ends are `route`, is in this network namespace.
  /// In a program that enters several, another connection may have the same ends here: answers and
  /// names made of the addresses would be that one's.
  Answer has(int fd, const Route& route);

 private:
  int netlink_;
  bool is_ours_ = false;
};

/// Finds the connected socket at `local` whose other end is `remote` in /proc/self/net/tcp or tcp6,
/// for a process that is refused sock_diag; the files must be procfs's. It reads all sockets up to
/// that one, and gives up in a namespace with very many. False: none, or unknown.
bool find_in_tcp_tables(const Endpoint& local, const Endpoint& remote, SockDiag::Found* found);

/// Tells whether the other end is in our network namespace. Asks the kernel, unless `remote` was
/// not here in the last five seconds. `now_ns`: monotonic_ns().
bool other_end_is_here(const Route& route, std::uint64_t now_ns);

}  // namespace clan::preload
