#include "packet.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace clan::ip {
namespace {

std::uint8_t byte_at(std::span<const std::byte> bytes, std::size_t at) {
  return static_cast<std::uint8_t>(bytes[at]);
}
std::uint16_t word_at(std::span<const std::byte> bytes, std::size_t at) {
  return static_cast<std::uint16_t>(byte_at(bytes, at) << 8 | byte_at(bytes, at + 1));
}

std::optional<Packet> parse_v4(std::span<const std::byte> bytes, std::size_t size) {
  if (bytes.size() < 20) return std::nullopt;
  Packet p;
  p.header = (byte_at(bytes, 0) & 0xfu) * 4u;
  if (p.header < 20 || p.header > size || p.header > bytes.size() || word_at(bytes, 2) != size)
    return std::nullopt;
  const std::uint16_t fragment = word_at(bytes, 6);
  p.may_not_fragment = (fragment & 0x4000) != 0;
  p.is_first_fragment = (fragment & 0x1fff) == 0;
  p.protocol = byte_at(bytes, 9);
  p.source = Address::of(false, bytes.data() + 12);
  p.destination = Address::of(false, bytes.data() + 16);
  return p;
}

std::optional<Packet> parse_v6(std::span<const std::byte> bytes, std::size_t size) {
  if (bytes.size() < 40 || word_at(bytes, 4) + std::size_t{40} != size) return std::nullopt;
  Packet p;
  p.header = 40;
  p.protocol = byte_at(bytes, 6);
  p.source = Address::of(true, bytes.data() + 8);
  p.destination = Address::of(true, bytes.data() + 24);
  return p;
}

/// Where the checksum of this protocol is in its header; 0: a packet of segments is never of
/// it.
std::size_t checksum_place(const VirtioHeader& header) {
  return (header.gso_type & ~VirtioHeader::kEcn) == VirtioHeader::kUdp ? 6 : 16;
}

/// Bytes of all headers up to the data, of a packet of segments; 0: they are not there.
std::size_t headers_of(const VirtioHeader& header, std::span<const std::byte> bytes) {
  if (checksum_place(header) == 6) return header.csum_start + std::size_t{8};
  if (header.csum_start + std::size_t{20} > bytes.size()) return 0;
  const std::size_t tcp = (byte_at(bytes, header.csum_start + 12u) >> 4) * 4u;
  return tcp < 20 ? 0 : header.csum_start + tcp;
}

/// A packet of segments: TCP or UDP where its header says, and a size of segments.
bool check_segments(VirtioHeader* header, const Packet& packet, std::span<const std::byte> bytes,
                    std::size_t size) {
  const bool udp = checksum_place(*header) == 6;
  // Behind extension headers of IPv6 the protocol is not in the first one.
  const std::uint8_t wanted = udp ? IPPROTO_UDP : IPPROTO_TCP;
  if (header->csum_start == packet.header ? packet.protocol != wanted : !packet.source.v6)
    return false;
  if ((header->flags & VirtioHeader::kNeedsCsum) == 0 || header->gso_size == 0) return false;
  if (header->csum_offset != checksum_place(*header) || !packet.is_first_fragment) return false;
  const std::size_t headers = headers_of(*header, bytes);
  if (headers == 0 || headers > size || headers > bytes.size()) return false;
  header->hdr_len = static_cast<std::uint16_t>(headers);
  return true;
}

}  // namespace

std::optional<Packet> parse(std::span<const std::byte> bytes, std::size_t size) {
  if (bytes.empty() || bytes.size() > size) return std::nullopt;
  const unsigned version = byte_at(bytes, 0) >> 4;
  if (version == 4) return parse_v4(bytes, size);
  return version == 6 ? parse_v6(bytes, size) : std::nullopt;
}

std::optional<unsigned> offload_of(const VirtioHeader& header, bool v6) {
  const bool ecn = (header.gso_type & VirtioHeader::kEcn) != 0;
  switch (header.gso_type & ~VirtioHeader::kEcn) {
    case VirtioHeader::kNone:
      if (ecn) return std::nullopt;
      return (header.flags & VirtioHeader::kNeedsCsum) != 0 ? kCsum : 0;
    case VirtioHeader::kTcp4:
      if (v6) return std::nullopt;
      return kTso4 | (ecn ? kTsoEcn : 0);
    case VirtioHeader::kTcp6:
      if (!v6) return std::nullopt;
      return kTso6 | (ecn ? kTsoEcn : 0);
    case VirtioHeader::kUdp:
      if (ecn) return std::nullopt;
      return v6 ? kUso6 : kUso4;
    default: return std::nullopt;
  }
}

bool check(VirtioHeader* header, const Packet& packet, std::span<const std::byte> bytes,
           std::size_t size, unsigned allowed) {
  constexpr unsigned kFlags = VirtioHeader::kNeedsCsum | VirtioHeader::kDataValid;
  const auto needs = offload_of(*header, packet.source.v6);
  if (!needs || (*needs & ~allowed) != 0 || (header->flags & ~kFlags) != 0) return false;
  header->hdr_len = 0;
  if ((header->flags & VirtioHeader::kNeedsCsum) != 0) {
    if (header->csum_start < packet.header ||
        header->csum_start + std::size_t{header->csum_offset} + 2 > size)
      return false;
    header->hdr_len = header->csum_start;
  }
  if (header->gso_type != VirtioHeader::kNone) return check_segments(header, packet, bytes, size);
  header->gso_size = 0;
  return true;
}

std::size_t wire_size(const VirtioHeader& header, std::size_t size) {
  if (header.gso_type == VirtioHeader::kNone) return size;
  return std::min(size, std::size_t{header.hdr_len} + header.gso_size);
}

}  // namespace clan::ip
