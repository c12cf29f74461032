#include "icmp.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace clan::ip {
namespace {

constexpr std::size_t kIcmp = 8;  ///< bytes of its header
constexpr std::uint8_t kIcmp4 = IPPROTO_ICMP, kIcmp6 = IPPROTO_ICMPV6;
constexpr std::size_t kQuote4 = 548;  ///< of the packet at most: such an answer has 576 bytes
constexpr std::size_t kQuote6 = 1232;

void put16(std::byte* at, std::size_t value) {
  at[0] = static_cast<std::byte>(value >> 8);
  at[1] = static_cast<std::byte>(value);
}

std::uint32_t sum(std::span<const std::byte> bytes, std::uint32_t start = 0) {
  for (std::size_t i = 0; i < bytes.size(); ++i)
    start += static_cast<std::uint32_t>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
  return start;
}
std::uint16_t checksum(std::uint32_t sum) {
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

bool is_answered(const Packet& packet, std::span<const std::byte> bytes) {
  if (!packet.is_first_fragment || !packet.source.is_of_one()) return false;
  const bool v6 = packet.source.v6;
  if (packet.protocol != (v6 ? kIcmp6 : kIcmp4)) return true;
  if (bytes.size() <= packet.header) return false;
  const auto type = static_cast<unsigned>(bytes[packet.header]);
  if (v6) return type >= 128;
  return type != 3 && type != 4 && type != 5 && type != 11 && type != 12;
}

// It comes from the address that was not reached: the kernel takes none from an own address.
std::vector<std::byte> answer(const Packet& packet, std::span<const std::byte> bytes, unsigned type,
                              unsigned code, std::size_t rest) {
  if (!is_answered(packet, bytes)) return {};
  const bool v6 = packet.source.v6;
  const std::size_t ip = v6 ? 40 : 20;
  const auto quote = bytes.first(std::min(bytes.size(), v6 ? kQuote6 : kQuote4));
  std::vector<std::byte> made(ip + kIcmp + quote.size());
  std::byte* const at = made.data();
  std::byte* const icmp = at + ip;
  const std::size_t address = packet.source.size();
  std::memcpy(at + ip - 2 * address, packet.destination.bytes.data(), address);
  std::memcpy(at + ip - address, packet.source.bytes.data(), address);
  icmp[0] = static_cast<std::byte>(type);
  icmp[1] = static_cast<std::byte>(code);
  put16(icmp + 6, rest);
  std::memcpy(icmp + kIcmp, quote.data(), quote.size());
  const std::span<const std::byte> body(icmp, kIcmp + quote.size());
  if (v6) {
    at[0] = std::byte{0x60};
    put16(at + 4, body.size());
    at[6] = std::byte{kIcmp6};
    at[7] = std::byte{64};
    const std::uint32_t pseudo = sum({at + 8, 32}, static_cast<std::uint32_t>(body.size()));
    put16(icmp + 2, checksum(sum(body, pseudo + kIcmp6)));
    return made;
  }
  at[0] = std::byte{0x45};
  put16(at + 2, made.size());
  at[8] = std::byte{64};
  at[9] = std::byte{kIcmp4};
  put16(at + 10, checksum(sum({at, ip})));
  put16(icmp + 2, checksum(sum(body)));
  return made;
}

}  // namespace

std::vector<std::byte> unreachable(const Packet& packet, std::span<const std::byte> bytes) {
  return packet.source.v6 ? answer(packet, bytes, 1, 3, 0) : answer(packet, bytes, 3, 1, 0);
}

std::vector<std::byte> too_big(const Packet& packet, std::span<const std::byte> bytes,
                               std::size_t mtu) {
  return packet.source.v6 ? answer(packet, bytes, 2, 0, mtu) : answer(packet, bytes, 3, 4, mtu);
}

}  // namespace clan::ip
