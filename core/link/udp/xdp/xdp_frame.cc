#include "link/udp/xdp/xdp_frame.h"

#include <algorithm>
#include <cstring>

namespace clan::udp {
namespace {

constexpr std::size_t kIp = 14, kUdp = 34;
constexpr std::size_t kIpHeader = 20, kUdpHeader = 8;
constexpr std::uint8_t kTtl = 64, kUdpProtocol = 17;

void put16(std::byte* at, std::size_t value) {
  at[0] = static_cast<std::byte>(value >> 8);
  at[1] = static_cast<std::byte>(value);
}
std::size_t get16(const std::byte* at) {
  return std::to_integer<std::size_t>(at[0]) << 8 | std::to_integer<std::size_t>(at[1]);
}

std::uint64_t add(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t sum = a + b;
  return sum + (sum < a ? 1 : 0);
}

/// A number of 16 bits as the network has it, as a term of a sum.
std::uint64_t term(std::size_t value) {
  std::byte bytes[2];
  put16(bytes, value);
  std::uint16_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// What a router would not forward, or a kernel would not take from a wire.
bool may_be_a_source(const std::byte* ip) {
  const auto first = std::to_integer<unsigned>(ip[0]);
  return first != 0 && first != 127 && first < 224;
}

}  // namespace

Ipv4 ipv4_of(const SocketAddress& a) { return {a.ip[12], a.ip[13], a.ip[14], a.ip[15]}; }

SocketAddress socket_address_of(const Ipv4& ip, std::uint16_t port) {
  SocketAddress a;
  a.ip[10] = a.ip[11] = 0xff;
  std::copy(ip.begin(), ip.end(), a.ip.begin() + 12);
  a.port = port;
  return a;
}

std::uint64_t checksum_sum(std::span<const std::byte> bytes) {
  std::uint64_t sums[2] = {};  // two chains of carries
  std::size_t at = 0;
  for (; at + 16 <= bytes.size(); at += 16) {
    std::uint64_t words[2];
    std::memcpy(words, bytes.data() + at, 16);
    sums[0] = add(sums[0], words[0]);
    sums[1] = add(sums[1], words[1]);
  }
  std::uint64_t rest[2] = {};
  std::memcpy(rest, bytes.data() + at, bytes.size() - at);
  return add(add(sums[0], sums[1]), add(rest[0], rest[1]));
}

std::uint16_t checksum_fold(std::uint64_t sum) {
  sum = (sum >> 32) + (sum & 0xffffffff);
  while (sum >> 16 != 0) sum = (sum >> 16) + (sum & 0xffff);
  return static_cast<std::uint16_t>(~sum);
}

FrameHeader::FrameHeader(const MacAddress& from_mac, const MacAddress& to_mac, const Ipv4& from,
                         std::uint16_t from_port, const Ipv4& to, std::uint16_t to_port) {
  std::byte* const b = bytes_.data();
  std::memcpy(b, to_mac.data(), 6);
  std::memcpy(b + 6, from_mac.data(), 6);
  b[12] = std::byte{8};
  b[kIp] = std::byte{0x45};
  b[kIp + 6] = std::byte{0x40};  // don't fragment: so the identification may be 0 (RFC 6864)
  b[kIp + 8] = std::byte{kTtl};
  b[kIp + 9] = std::byte{kUdpProtocol};
  std::memcpy(b + kIp + 12, from.data(), 4);
  std::memcpy(b + kIp + 16, to.data(), 4);
  put16(b + kUdp, from_port);
  put16(b + kUdp + 2, to_port);
  const std::span<const std::byte> all(bytes_);
  ip_sum_ = checksum_sum(all.subspan(kIp, kIpHeader));
  udp_sum_ = add(checksum_sum(all.subspan(kIp + 12, 8)), checksum_sum(all.subspan(kUdp, 4)));
  udp_sum_ = add(udp_sum_, term(kUdpProtocol));
}

void FrameHeader::write(std::span<std::byte> frame, std::span<const std::byte> payload) const {
  std::byte* const b = frame.data();
  std::memcpy(b, bytes_.data(), kFrameHeader);
  std::memcpy(b + kFrameHeader, payload.data(), payload.size());
  const std::size_t datagram = kUdpHeader + payload.size();
  put16(b + kIp + 2, kIpHeader + datagram);
  put16(b + kUdp + 4, datagram);
  const std::uint16_t of_ip = checksum_fold(add(ip_sum_, term(kIpHeader + datagram)));
  std::memcpy(b + kIp + 10, &of_ip, sizeof of_ip);
  const std::uint64_t lengths = 2 * term(datagram);  // in the pseudo-header and in the header
  std::uint16_t of_udp = checksum_fold(add(add(udp_sum_, lengths), checksum_sum(payload)));
  if (of_udp == 0) of_udp = 0xffff;  // 0 says that there is none
  std::memcpy(b + kUdp + 6, &of_udp, sizeof of_udp);
}

bool parse_frame(std::span<std::byte> frame, const Ipv4& ip, std::uint16_t port, ParsedFrame* out) {
  if (frame.size() <= kFrameHeader) return false;
  const std::byte* const b = frame.data();
  if (get16(b + 12) != 0x0800 || b[kIp] != std::byte{0x45}) return false;
  if ((get16(b + kIp + 6) & 0x3fff) != 0 || b[kIp + 9] != std::byte{kUdpProtocol}) return false;
  const std::size_t packet = get16(b + kIp + 2), datagram = get16(b + kUdp + 4);
  // Behind the packet there may be padding: the least frame of Ethernet has 60 bytes.
  if (packet > frame.size() - kIp || packet != datagram + kIpHeader) return false;
  if (datagram <= kUdpHeader) return false;
  if (std::memcmp(b + kIp + 16, ip.data(), 4) != 0 || get16(b + kUdp + 2) != port) return false;
  if (!may_be_a_source(b + kIp + 12) || get16(b + kUdp) == 0) return false;
  if (checksum_fold(checksum_sum(frame.subspan(kIp, kIpHeader))) != 0) return false;
  Ipv4 from;
  std::memcpy(from.data(), b + kIp + 12, 4);
  out->from = socket_address_of(from, static_cast<std::uint16_t>(get16(b + kUdp)));
  out->payload = frame.subspan(kFrameHeader, datagram - kUdpHeader);
  return true;
}

}  // namespace clan::udp
