// Frames of Ethernet, IPv4 and UDP for AF_XDP: written for one flow, read as input.
//
//    0 to 13  Ethernet: the next hop's address, ours, 0x0800
//   14 to 33  IPv4 without options: don't fragment, TTL 64
//   34 to 41  UDP, with a checksum
//   42        a packet of docs/wire.md
//
// Pure functions; no state but the flow's header.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "link/udp/wire/socket_address.h"

namespace clan::udp {

constexpr std::size_t kFrameHeader = 42;
constexpr std::size_t kIpHeaders = 28;  ///< of IPv4 and UDP: what a device's MTU counts besides

using MacAddress = std::array<std::uint8_t, 6>;
using Ipv4 = std::array<std::uint8_t, 4>;

/// The last four bytes of an address of IPv4.
Ipv4 ipv4_of(const SocketAddress& address);
SocketAddress socket_address_of(const Ipv4& ip, std::uint16_t port);

/// What the frames of one flow have in common.
class FrameHeader {
 public:
  FrameHeader() = default;
  FrameHeader(const MacAddress& from_mac, const MacAddress& to_mac, const Ipv4& from,
              std::uint16_t from_port, const Ipv4& to, std::uint16_t to_port);
  /// Writes header and payload; `frame` holds both, the payload at most 65,000 bytes.
  void write(std::span<std::byte> frame, std::span<const std::byte> payload) const;

 private:
  std::array<std::byte, kFrameHeader> bytes_{};
  std::uint64_t ip_sum_ = 0, udp_sum_ = 0;  ///< of what does not change, not folded
};

struct ParsedFrame {
  SocketAddress from;
  std::span<std::byte> payload;  ///< of the frame; never empty
};

/// Parses a datagram for `port` of `ip`. False: none, or unsound: contradicting lengths, a
/// fragment, options, a wrong header checksum, an impossible source. Ignores UDP's checksum, which
/// namespaces of one host leave unfilled; every packet carries its own check.
bool parse_frame(std::span<std::byte> frame, const Ipv4& ip, std::uint16_t port, ParsedFrame* out);

/// The sum of `bytes` as words of 16 bits in memory order, to be folded (RFC 1071).
std::uint64_t checksum_sum(std::span<const std::byte> bytes);
/// The checksum of what was summed, in memory order.
std::uint16_t checksum_fold(std::uint64_t sum);

}  // namespace clan::udp
