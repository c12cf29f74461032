// The question to sock_diag (AF_NETLINK) about one TCP socket, as `ss` asks it.
#pragma once

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace clan {

/// An end of a connection; IPv4 addresses mapped.
struct TcpEnd {
  in6_addr address{};
  std::uint16_t port = 0;  ///< host order
  friend bool operator==(const TcpEnd& a, const TcpEnd& b) {
    return a.port == b.port && std::memcmp(&a.address, &b.address, sizeof a.address) == 0;
  }
};

/// Asks for the socket `local` - `remote`, or a listener. The answer has the same `number`.
struct TcpQuestion {
  nlmsghdr header{};
  inet_diag_req_v2 request{};

  TcpQuestion(const TcpEnd& local, const TcpEnd& remote, std::uint32_t number) {
    header.nlmsg_len = sizeof *this;
    header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
    header.nlmsg_flags = NLM_F_REQUEST;
    header.nlmsg_seq = number;
    const bool ipv4 = IN6_IS_ADDR_V4MAPPED(&local.address);
    const std::size_t from = ipv4 ? 12 : 0;
    request.sdiag_family = ipv4 ? AF_INET : AF_INET6;
    request.sdiag_protocol = IPPROTO_TCP;
    request.idiag_states = ~0u;
    inet_diag_sockid& id = request.id;
    id.idiag_sport = htons(local.port);
    id.idiag_dport = htons(remote.port);
    id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    std::memcpy(id.idiag_src, local.address.s6_addr + from, 16 - from);
    std::memcpy(id.idiag_dst, remote.address.s6_addr + from, 16 - from);
  }
};

}  // namespace clan
