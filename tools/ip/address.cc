#include "address.h"

#include <arpa/inet.h>

#include <cstdlib>

namespace clan::ip {
namespace {

/// Returns the bits of byte `i` that belong to a prefix.
std::uint8_t mask_of(unsigned bits, std::size_t i) {
  const unsigned before = static_cast<unsigned>(i) * 8;
  if (bits <= before) return 0;
  return bits >= before + 8 ? 0xff : static_cast<std::uint8_t>(0xff00u >> (bits - before));
}

}  // namespace

bool Address::is_of_one() const {
  if (!v6) return bytes[0] < 224 && bytes[0] != 0 && bytes[0] != 127;
  const bool link_local = bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
  bool low = true;  // ::, ::1
  for (std::size_t i = 0; i < 15; ++i) low = low && bytes[i] == 0;
  return bytes[0] != 0xff && !link_local && !(low && bytes[15] < 2);
}

bool Prefix::contains(const Address& a) const {
  if (a.v6 != address.v6) return false;
  for (std::size_t i = 0; i < a.size() && i * 8 < bits; ++i) {
    if (((a.bytes[i] ^ address.bytes[i]) & mask_of(bits, i)) != 0) return false;
  }
  return true;
}

bool Prefix::is_broadcast(const Address& a) const {
  if (a.v6 || bits > 30 || !contains(a)) return false;
  for (std::size_t i = 0; i < 4; ++i) {
    if ((a.bytes[i] | mask_of(bits, i)) != 0xff) return false;
  }
  return true;
}

std::optional<Address> parse_address(const std::string& text) {
  Address a{text.find(':') != std::string::npos, {}};
  if (::inet_pton(a.v6 ? AF_INET6 : AF_INET, text.c_str(), a.bytes.data()) != 1)
    return std::nullopt;
  return a;
}

std::optional<Prefix> parse_prefix(const std::string& text) {
  const auto slash = text.find('/');
  const auto address = parse_address(text.substr(0, slash));
  if (!address) return std::nullopt;
  const unsigned most = address->v6 ? 128 : 32;
  if (slash == std::string::npos) return Prefix{*address, most};
  const std::string bits = text.substr(slash + 1);
  if (bits.empty() || bits.size() > 3 || bits.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  const auto n = static_cast<unsigned>(std::atoi(bits.c_str()));
  return n <= most ? std::optional<Prefix>({*address, n}) : std::nullopt;
}

std::string to_string(const Address& address) {
  char text[INET6_ADDRSTRLEN] = {};
  ::inet_ntop(address.v6 ? AF_INET6 : AF_INET, address.bytes.data(), text, sizeof text);
  return text;
}

std::string to_string(const Prefix& prefix) {
  return to_string(prefix.address) + "/" + std::to_string(prefix.bits);
}

}  // namespace clan::ip
