#include "link/udp/socket_io.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <string>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace clan::udp {
namespace {

constexpr std::size_t kTruesize = 832;  ///< what the kernel charges for a small datagram
constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

socklen_t to_kernel(const SocketAddress& a, bool ipv6, sockaddr_storage* out) {
  std::memset(out, 0, sizeof *out);
  if (ipv6) {
    auto* s = reinterpret_cast<sockaddr_in6*>(out);
    s->sin6_family = AF_INET6;
    s->sin6_port = htons(a.port);
    s->sin6_scope_id = a.scope;
    std::memcpy(&s->sin6_addr, a.ip.data(), 16);
    return sizeof *s;
  }
  auto* s = reinterpret_cast<sockaddr_in*>(out);
  s->sin_family = AF_INET;
  s->sin_port = htons(a.port);
  std::memcpy(&s->sin_addr, a.ip.data() + 12, 4);
  return sizeof *s;
}

SocketAddress from_kernel(const sockaddr_storage& in) {
  SocketAddress a;
  if (in.ss_family == AF_INET6) {
    const auto& s = reinterpret_cast<const sockaddr_in6&>(in);
    a.port = ntohs(s.sin6_port);
    a.scope = s.sin6_scope_id;
    std::memcpy(a.ip.data(), &s.sin6_addr, 16);
  } else if (in.ss_family == AF_INET) {
    const auto& s = reinterpret_cast<const sockaddr_in&>(in);
    a.port = ntohs(s.sin_port);
    std::copy(std::begin(kMapped), std::end(kMapped), a.ip.begin());
    std::memcpy(a.ip.data() + 12, &s.sin_addr, 4);
  }
  return a;
}

bool set(int fd, int level, int name, int value) {
  return ::setsockopt(fd, level, name, &value, sizeof value) == 0;
}

}  // namespace

Result<std::unique_ptr<SocketIo>> SocketIo::open(const SocketAddress& local, const Options& options) {
  std::unique_ptr<SocketIo> io(new SocketIo);
  if (auto s = io->prepare(local, options); !s) return s.error();
  return io;
}

Status SocketIo::prepare(const SocketAddress& local, const Options& options) {
  socket_ = Fd(::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket_ && !set(socket_.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0)) socket_.reset();
  if (!socket_) {
    ipv6_ = false;
    socket_ = Fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  }
  if (!socket_) return errno_error("a UDP socket");
  const int fd = socket_.get();
  // Packets are never cut on the way: path MTU discovery is ours.
  (void)set(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
  if (ipv6_) (void)set(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
  (void)set(fd, SOL_SOCKET, SO_RCVBUF, options.buffer_bytes);
  (void)set(fd, SOL_SOCKET, SO_SNDBUF, options.buffer_bytes);
  offload_ = options.segment_offload && set(fd, SOL_UDP, UDP_GRO, 1);
  int room = 0;
  socklen_t size = sizeof room;
  (void)::getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, &size);
  packets_of_room_ = std::max<std::uint32_t>(32, static_cast<std::uint32_t>(room) / kTruesize);
  sockaddr_storage address;
  const socklen_t length = to_kernel(local, ipv6_, &address);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0)
    return errno_error("binding a UDP socket");
  socklen_t bound = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bound) != 0)
    return errno_error("getsockname");
  local_ = from_kernel(address);
  slots_.resize(kSlots * kSlotBytes);
  return {};
}

PacketIo::Sent SocketIo::send_one(const SocketAddress& to, std::span<const std::byte> bytes,
                                  std::size_t segment) {
  sockaddr_storage address;
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_name = &address;
  message.msg_namelen = to_kernel(to, ipv6_, &address);
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(std::uint16_t))] = {};
  if (segment < bytes.size()) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_UDP;
    c->cmsg_type = UDP_SEGMENT;
    c->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
    const auto value = static_cast<std::uint16_t>(segment);
    std::memcpy(CMSG_DATA(c), &value, sizeof value);
  }
  for (;;) {
    if (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) >= 0) return Sent::kSent;
    switch (errno) {
      case EINTR: continue;
      case EAGAIN: return Sent::kLater;
      case EMSGSIZE: return Sent::kTooBig;
      case EINVAL: return segment < bytes.size() ? Sent::kTooBig : Sent::kSent;
      default: return Sent::kSent;  // ENOBUFS, ENETUNREACH, ECONNREFUSED: as if the network had lost it
    }
  }
}

PacketIo::Sent SocketIo::send(const Train& train, std::span<const std::byte> bytes) {
  if (offload_ || train.segment >= bytes.size()) {
    const Sent sent = send_one(train.to, bytes, train.segment);
    if (sent != Sent::kTooBig || train.segment >= bytes.size() || train.segment > kBasePacket) return sent;
    offload_ = false;  // packets of the least size: it is GSO that the kernel does not have
  }
  std::size_t sent = 0;
  for (; sent < bytes.size(); sent += train.segment) {
    const Sent s = send_one(train.to, bytes.subspan(sent, std::min(train.segment, bytes.size() - sent)),
                            ~std::size_t{0});
    // A rest that finds no room is lost, like packets in any queue that is full.
    if (s != Sent::kSent && sent == 0) return s;
  }
  return Sent::kSent;
}

// One datagram, or what GRO has made one of. False: there is none, or only what is to be dropped.
bool SocketIo::receive_one(std::size_t slot, Arrival* out, bool* empty) {
  sockaddr_storage address;
  iovec part{slots_.data() + slot * kSlotBytes, kSlotBytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr m{};
  m.msg_name = &address;
  m.msg_namelen = sizeof address;
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  const ssize_t n = ::recvmsg(socket_.get(), &m, MSG_DONTWAIT);
  *empty = n < 0;
  if (n <= 0 || (m.msg_flags & MSG_TRUNC) != 0) return false;
  out->from = from_kernel(address);
  out->bytes = {slots_.data() + slot * kSlotBytes, static_cast<std::size_t>(n)};
  out->segment = out->bytes.size();
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c)) {
    int value = 0;
    if (c->cmsg_level != SOL_UDP || c->cmsg_type != UDP_GRO) continue;
    std::memcpy(&value, CMSG_DATA(c), sizeof value);
    if (value > 0) out->segment = static_cast<std::size_t>(value);
  }
  return true;
}

// By recvmsg, not recvmmsg: that asks once more after the last one, and in a ping-pong every one is the last.
std::size_t SocketIo::receive(std::span<Arrival> out) {
  const std::size_t most = std::min(out.size(), kSlots);
  std::size_t count = 0;
  bool empty = false;
  while (count < most && !empty) {
    if (!receive_one(count, &out[count], &empty)) continue;
    const Arrival& a = out[count++];
    // A short one is most often alone: it is looked at before the kernel is asked again.
    if (offload_ && a.bytes.size() < kLoneBytes) break;
  }
  return count;
}

std::string to_string(const SocketAddress& a) {
  char text[INET6_ADDRSTRLEN] = "";
  const bool ipv4 = std::equal(std::begin(kMapped), std::end(kMapped), a.ip.begin());
  (void)::inet_ntop(ipv4 ? AF_INET : AF_INET6, a.ip.data() + (ipv4 ? 12 : 0), text, sizeof text);
  const std::string host = ipv4 ? text : "[" + std::string(text) + "]";
  return host + ":" + std::to_string(a.port);
}

Result<SocketAddress> parse_address(const char* text) {
  std::string host(text);
  const auto colon = host.rfind(':');
  if (colon == std::string::npos) return Error{EINVAL, "an address is HOST:PORT"};
  const std::string port = host.substr(colon + 1);
  host.resize(colon);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0 || found == nullptr) {
    return Error{ENOENT, "no such host or port"};
  }
  sockaddr_storage storage{};
  std::memcpy(&storage, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return from_kernel(storage);
}

}  // namespace clan::udp
