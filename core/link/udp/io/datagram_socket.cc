#include "link/udp/io/datagram_socket.h"

#include <linux/errqueue.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/wait_call.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

namespace clan::udp {
namespace {

constexpr int kMostErrors = 256;  ///< of earlier packets, taken in one go
constexpr int kMostAgain = 4;     ///< receives after an error

socklen_t to_kernel(const SocketAddress& a, bool ipv6, sockaddr_storage* out) {
  if (ipv6) {
    sockaddr_in6 s{};
    s.sin6_family = AF_INET6;
    s.sin6_port = htons(a.port);
    s.sin6_scope_id = a.scope;
    std::memcpy(&s.sin6_addr, a.ip.data(), 16);
    std::memcpy(out, &s, sizeof s);
    return sizeof s;
  }
  sockaddr_in s{};
  s.sin_family = AF_INET;
  s.sin_port = htons(a.port);
  std::memcpy(&s.sin_addr, a.ip.data() + 12, 4);
  std::memcpy(out, &s, sizeof s);
  return sizeof s;
}

// --- what goes beside a packet -------------------------------------------------------------------

constexpr std::size_t kSourceSpace = CMSG_SPACE(sizeof(in6_pktinfo));

/// Room for what is said beside a packet that leaves, and what has been said.
struct Control {
  alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(std::uint16_t)) + kSourceSpace];
  std::size_t size = 0;

  template <typename Value>
  void add(int level, int type, const Value& value) {
    cmsghdr header{};
    header.cmsg_level = level;
    header.cmsg_type = type;
    header.cmsg_len = CMSG_LEN(sizeof value);
    std::memset(bytes + size, 0, CMSG_SPACE(sizeof value));
    std::memcpy(bytes + size, &header, sizeof header);
    std::memcpy(bytes + size + CMSG_LEN(0), &value, sizeof value);
    size += CMSG_SPACE(sizeof value);
  }
  void add_source(const SocketAddress& from, bool ipv6) {
    if (ipv6) {
      in6_pktinfo info{};
      std::memcpy(&info.ipi6_addr, from.ip.data(), 16);
      add(IPPROTO_IPV6, IPV6_PKTINFO, info);
    } else {
      in_pktinfo info{};
      std::memcpy(&info.ipi_spec_dst, from.ip.data() + 12, 4);
      add(IPPROTO_IP, IP_PKTINFO, info);
    }
  }
};

/// What has been said beside one that has come.
void read_control(msghdr& m, Arrival* out) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) {
      int value = 0;
      std::memcpy(&value, CMSG_DATA(c), sizeof value);
      if (value > 0) out->segment = static_cast<std::size_t>(value);
    } else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
      std::memcpy(out->at.ip.data(), CMSG_DATA(c) + offsetof(in6_pktinfo, ipi6_addr), 16);
    } else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
      out->at.ip = kMappedIpv4;
      std::memcpy(out->at.ip.data() + 12, CMSG_DATA(c) + offsetof(in_pktinfo, ipi_spec_dst), 4);
    }
  }
}

/// A message of the error queue: the host that the packet went to says that nobody has the port.
bool refuses(msghdr& m) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c)) {
    const bool four = c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR;
    const bool six = c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_RECVERR;
    if ((!four && !six) || c->cmsg_len < CMSG_LEN(sizeof(sock_extended_err))) continue;
    sock_extended_err e;
    std::memcpy(&e, CMSG_DATA(c), sizeof e);
    const bool by4 = e.ee_origin == SO_EE_ORIGIN_ICMP && e.ee_type == ICMP_DEST_UNREACH &&
                     e.ee_code == ICMP_PORT_UNREACH;
    const bool by6 = e.ee_origin == SO_EE_ORIGIN_ICMP6 && e.ee_type == ICMP6_DST_UNREACH &&
                     e.ee_code == ICMP6_DST_UNREACH_NOPORT;
    if (by4 || by6) return true;
  }
  return false;
}

// Past the C library: the node's mutex is held.
long receive_message(int fd, msghdr& m, int flags = 0) {
  return sys::past_libc(::recvmsg, SYS_recvmsg, fd, &m, MSG_DONTWAIT | flags);
}

bool set(int fd, int level, int name, int value) {
  return ::setsockopt(fd, level, name, &value, sizeof value) == 0;
}

}  // namespace

Result<DatagramSocket> DatagramSocket::open(Family family, int buffer_bytes) {
  DatagramSocket made;
  made.family_ = family;
  const bool ipv6 = family != Family::kIpv4;
  made.socket_ =
      Fd(::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.socket_) return errno_error("a UDP socket");
  const int fd = made.fd();
  if (ipv6 && !set(fd, IPPROTO_IPV6, IPV6_V6ONLY, family == Family::kIpv6 ? 1 : 0)) {
    return errno_error("a UDP socket of IPv6");
  }
  // Packets are never cut on the way: path MTU discovery is ours.
  (void)set(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
  if (ipv6) (void)set(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
  // What other hosts say by ICMP: a peer whose port is closed has gone.
  (void)set(fd, IPPROTO_IP, IP_RECVERR, 1);
  if (ipv6) (void)set(fd, IPPROTO_IPV6, IPV6_RECVERR, 1);
  (void)set(fd, SOL_SOCKET, SO_RCVBUF, buffer_bytes);
  (void)set(fd, SOL_SOCKET, SO_SNDBUF, buffer_bytes);
  return made;
}

Status DatagramSocket::bind(const SocketAddress& local) {
  sockaddr_storage address;
  const socklen_t length = to_kernel(local, family_ != Family::kIpv4, &address);
  const bool bound = ::bind(fd(), reinterpret_cast<sockaddr*>(&address), length) == 0;
  return bound ? Status() : errno_error("binding a UDP socket");
}

Status DatagramSocket::connect(const SocketAddress& to) {
  sockaddr_storage address;
  const socklen_t length = to_kernel(to, family_ != Family::kIpv4, &address);
  const bool connected = ::connect(fd(), reinterpret_cast<sockaddr*>(&address), length) == 0;
  return connected ? Status() : errno_error("connecting a UDP socket");
}

bool DatagramSocket::share_port(bool on) { return set(fd(), SOL_SOCKET, SO_REUSEPORT, on ? 1 : 0); }

bool DatagramSocket::tell_destination() {
  return family_ == Family::kIpv4 ? set(fd(), IPPROTO_IP, IP_PKTINFO, 1)
                                  : set(fd(), IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
}

bool DatagramSocket::use_gro(bool on) { return set(fd(), SOL_UDP, UDP_GRO, on ? 1 : 0); }

Result<SocketAddress> DatagramSocket::local_address() const {
  sockaddr_storage address;
  socklen_t length = sizeof address;
  if (::getsockname(fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return errno_error("getsockname");
  }
  return socket_address(address);
}

std::optional<SocketAddress> DatagramSocket::peer_address() const {
  sockaddr_storage address;
  socklen_t length = sizeof address;
  if (::getpeername(fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return std::nullopt;
  return socket_address(address);
}

std::size_t DatagramSocket::receive_buffer() const {
  int room = 0;
  socklen_t size = sizeof room;
  (void)::getsockopt(fd(), SOL_SOCKET, SO_RCVBUF, &room, &size);
  return static_cast<std::size_t>(std::max(room, 0));
}

bool same_network(int socket, int other) {
  std::uint64_t cookies[2] = {};
  const int fds[2] = {socket, other};
  for (int i = 0; i < 2; ++i) {
    socklen_t size = sizeof cookies[i];
    if (::getsockopt(fds[i], SOL_SOCKET, SO_NETNS_COOKIE, &cookies[i], &size) != 0) return false;
  }
  return cookies[0] == cookies[1];
}

DatagramSocket::Sent DatagramSocket::send(const SocketAddress* to, std::span<const std::byte> bytes,
                                          std::size_t segment, const SocketAddress* from) {
  sockaddr_storage address;
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  if (to != nullptr) {
    message.msg_name = &address;
    message.msg_namelen = to_kernel(*to, family_ != Family::kIpv4, &address);
  }
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  const bool train = segment < bytes.size();
  Control control;
  if (train) control.add(SOL_UDP, UDP_SEGMENT, static_cast<std::uint16_t>(segment));
  const std::size_t without_source = control.size;
  if (from != nullptr) control.add_source(*from, family_ != Family::kIpv4);
  const auto say = [&](std::size_t size) {
    message.msg_control = size > 0 ? control.bytes : nullptr;
    message.msg_controllen = size;
  };
  say(control.size);
  // Without address and train the short call does the same with less to copy.
  const bool plain = to == nullptr && control.size == 0;
  for (bool again = false;;) {
    const long n = plain ? sys::past_libc(::sendto, SYS_sendto, fd(), bytes.data(), bytes.size(),
                                          MSG_NOSIGNAL, nullptr, 0)
                         : sys::past_libc(::sendmsg, SYS_sendmsg, fd(), &message, MSG_NOSIGNAL);
    if (n >= 0) [[likely]]
      return Sent::kSent;
    const int err = errno;
    if (err == EINTR) continue;
    if (err == EAGAIN) return Sent::kLater;
    // It is none of our addresses any more: kernels differ in how they say that.
    if (from != nullptr && (err == EINVAL || err == ENETUNREACH || err == EADDRNOTAVAIL)) {
      from = nullptr;
      say(without_source);
      continue;
    }
    take_errors();
    // The first time this may be the error of an earlier packet.
    if (!std::exchange(again, true)) continue;
    switch (err) {
      case EMSGSIZE: return Sent::kTooBig;
      case EIO:  // IPsec, and before Linux 6.11 a device that makes no checksums
      case EINVAL: return train ? Sent::kTooBig : Sent::kFailed;
      case ECONNREFUSED:
      case ENOBUFS: return Sent::kSent;  // as if the network had lost it
      default: return Sent::kFailed;
    }
  }
}

bool DatagramSocket::receive(std::span<std::byte> to, Arrival* out) {
  sockaddr_storage address;
  iovec part{to.data(), to.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int)) + kSourceSpace];
  msghdr m{};
  m.msg_name = &address;
  m.msg_namelen = sizeof address;
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  long n = -1;
  for (int i = 0; (n = receive_message(fd(), m)) < 0; ++i) {
    if (errno == EAGAIN || i >= kMostAgain) return false;
    if (errno != EINTR) take_errors();  // behind the error there may be packets
    m.msg_namelen = sizeof address;
    m.msg_controllen = sizeof control;
  }
  out->from = socket_address(address);
  out->bytes = to.first((m.msg_flags & MSG_TRUNC) != 0 ? 0 : static_cast<std::size_t>(n));
  out->segment = out->bytes.size();
  out->at = {};
  read_control(m, out);
  return true;
}

bool DatagramSocket::receive_plain(std::span<std::byte> to, Arrival* out) {
  long n = -1;
  for (int i = 0; (n = sys::past_libc(::recvfrom, SYS_recvfrom, fd(), to.data(), to.size(),
                                      MSG_DONTWAIT | MSG_TRUNC, nullptr, nullptr)) < 0;
       ++i) {
    if (errno == EAGAIN || i >= kMostAgain) return false;
    if (errno != EINTR) take_errors();
  }
  const auto whole = static_cast<std::size_t>(n);  // also of what is cut
  out->bytes = to.first(whole > to.size() ? 0 : whole);
  out->segment = out->bytes.size();
  return true;
}

// They keep the descriptor ready until they are taken, so all are.
void DatagramSocket::take_errors() {
  for (int i = 0; i < kMostErrors; ++i) {
    sockaddr_storage address{};
    alignas(cmsghdr) char
        control[CMSG_SPACE(sizeof(sock_extended_err) + sizeof(sockaddr_in6)) + kSourceSpace];
    msghdr m{};
    m.msg_name = &address;
    m.msg_namelen = sizeof address;
    m.msg_control = control;
    m.msg_controllen = sizeof control;
    if (receive_message(fd(), m, MSG_ERRQUEUE) < 0) return;
    if (refuses(m) && refusals_.size() < kMostRefusals)
      refusals_.push_back(socket_address(address));
  }
}

bool DatagramSocket::next_refusal(SocketAddress* to) {
  if (refusals_.empty()) [[likely]]
    return false;
  *to = refusals_.back();
  refusals_.pop_back();
  return true;
}

}  // namespace clan::udp
