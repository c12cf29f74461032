// Packets for tests: with the virtio header that a kernel would give them.
#pragma once

#include <netinet/in.h>

#include <cstring>
#include <vector>

#include "packet.h"

namespace clan::ip {

inline Address address(const char* text) { return *parse_address(text); }

struct Frame {
  VirtioHeader header;
  std::vector<std::byte> ip;

  std::optional<Packet> parsed() const { return parse(ip, ip.size()); }
  /// As it comes from a peer.
  bool passes(unsigned allowed = kAllOffloads) {
    const auto packet = parsed();
    return packet && check(&header, *packet, std::span(ip).first(std::min(ip.size(), kHead)),
                           ip.size(), allowed);
  }
  void set16(std::size_t at, std::size_t value) {
    ip[at] = static_cast<std::byte>(value >> 8);
    ip[at + 1] = static_cast<std::byte>(value);
  }
};

inline Frame frame(bool v6, std::uint8_t protocol, std::size_t size) {
  Frame f;
  f.ip.resize(size);
  const Address from = address(v6 ? "fd09::2" : "10.9.0.2");
  const Address to = address(v6 ? "fd09::1" : "10.9.0.1");
  f.ip[0] = v6 ? std::byte{0x60} : std::byte{0x45};
  f.set16(v6 ? 4 : 2, v6 ? size - 40 : size);
  f.ip[v6 ? 6 : 9] = static_cast<std::byte>(protocol);
  std::memcpy(f.ip.data() + (v6 ? 8 : 12), from.bytes.data(), from.size());
  std::memcpy(f.ip.data() + (v6 ? 24 : 16), to.bytes.data(), to.size());
  return f;
}

/// A datagram of IPv4 that the kernel of `to` takes, to port 7777.
inline Frame datagram(const Address& from, const Address& to) {
  Frame f = frame(false, IPPROTO_UDP, 40);
  std::memcpy(f.ip.data() + 12, from.bytes.data(), 4);
  std::memcpy(f.ip.data() + 16, to.bytes.data(), 4);
  f.ip[8] = std::byte{64};
  f.set16(22, 7777);
  f.set16(24, 20);
  unsigned sum = 0;
  for (std::size_t i = 0; i < 20; i += 2)
    sum += static_cast<unsigned>(f.ip[i]) << 8 | static_cast<unsigned>(f.ip[i + 1]);
  f.set16(10, 0xffff - (sum % 0xffff));
  return f;
}

/// A TCP super-packet.
inline Frame segments(bool v6) {
  Frame f = frame(v6, IPPROTO_TCP, 9000);
  const std::size_t tcp = v6 ? 40 : 20;
  f.ip[tcp + 12] = std::byte{0x80};  // 32 bytes of header
  f.header = {VirtioHeader::kNeedsCsum,
              v6 ? VirtioHeader::kTcp6 : VirtioHeader::kTcp4,
              static_cast<std::uint16_t>(tcp + 32),
              1448,
              static_cast<std::uint16_t>(tcp),
              16};
  return f;
}

}  // namespace clan::ip
