// Addresses of IPv4 and IPv6, and prefixes of them, as packets have them and as users write them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

namespace clan::ip {

/// An IPv4 address has its four bytes first, and zeros.
struct Address {
  bool v6 = false;
  std::array<std::uint8_t, 16> bytes{};

  static Address of(bool v6, const void* from) {
    Address a{v6, {}};
    std::memcpy(a.bytes.data(), from, a.size());
    return a;
  }
  std::size_t size() const { return v6 ? 16 : 4; }
  /// Multicast, broadcast, link-local of IPv6 and unspecified: none of them is one peer's.
  bool is_of_one() const;
  bool operator==(const Address&) const = default;
};

struct Prefix {
  Address address;
  unsigned bits = 0;

  bool contains(const Address& a) const;
  /// Whether `a` is the highest address of a prefix of IPv4.
  bool is_broadcast(const Address& a) const;
  bool operator==(const Prefix&) const = default;
};

std::optional<Address> parse_address(const std::string& text);
/// ADDRESS/BITS; without BITS all of them.
std::optional<Prefix> parse_prefix(const std::string& text);
std::string to_string(const Address& address);
std::string to_string(const Prefix& prefix);

}  // namespace clan::ip
