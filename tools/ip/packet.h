// A packet of the device: a virtio header, as the kernel has it, and an IP packet behind it. What a
// peer has sent is checked here before the kernel gets it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "address.h"

namespace clan::ip {

/// As linux/virtio_net.h has it, which C++ does not read.
struct VirtioHeader {
  static constexpr std::uint8_t kNeedsCsum = 1, kDataValid = 2;  ///< flags
  static constexpr std::uint8_t kNone = 0, kTcp4 = 1, kTcp6 = 4, kUdp = 5, kEcn = 0x80;
  std::uint8_t flags = 0;
  std::uint8_t gso_type = kNone;  ///< of a super-packet: TCP's or UDP's segments, with kEcn
  std::uint16_t hdr_len = 0;      ///< of all headers
  std::uint16_t gso_size = 0;     ///< of the data of a segment
  std::uint16_t csum_start = 0, csum_offset = 0;
};
inline constexpr std::size_t kHeader = sizeof(VirtioHeader);
static_assert(kHeader == 10);
/// An IPv6 packet may be 40 bytes longer than its length says.
inline constexpr std::size_t kMostPacket = 65'535 + 40;
/// The part of a packet that is checked: the headers of IP and TCP with their options.
inline constexpr std::size_t kHead = 128;

// What a device takes and a peer may send: TUN_F_*, of which older headers of the kernel lack the
// last two.
inline constexpr unsigned kCsum = 0x01, kTso4 = 0x02, kTso6 = 0x04, kTsoEcn = 0x08, kUso4 = 0x20,
                          kUso6 = 0x40;
inline constexpr unsigned kAllOffloads = kCsum | kTso4 | kTso6 | kTsoEcn | kUso4 | kUso6;

/// What a packet is, by its first bytes.
struct Packet {
  Address source, destination;
  std::size_t header = 0;     ///< bytes of the IP header, without those of IPv6's extensions
  std::uint8_t protocol = 0;  ///< of IPv6 the next header
  bool may_not_fragment = true;
  bool is_first_fragment = true;
};

/// `bytes` are the first ones of a packet of `size`. Nothing: not IP, cut short, or the length in
/// it is wrong.
std::optional<Packet> parse(std::span<const std::byte> bytes, std::size_t size);

/// The offload that a packet with this header needs; 0: none; nothing: there is no such one.
std::optional<unsigned> offload_of(const VirtioHeader& header, bool v6);

/// Whether the kernel may have it: a header that agrees with its packet, of offloads among
/// `allowed`. Sets what the header says of lengths to what the packet says.
bool check(VirtioHeader* header, const Packet& packet, std::span<const std::byte> bytes,
           std::size_t size, unsigned allowed);

/// The size of the IP packets that will go over a wire, were there one: of a super-packet its
/// pieces'.
std::size_t wire_size(const VirtioHeader& header, std::size_t size);

}  // namespace clan::ip
