// Addresses that the gateway listens at, connects to and compares: TCP's, and names of AF_CLAN.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace clan::gateway {

/// An IPv6 address, or an IPv4 one in its mapped form: one kind to compare.
using Ip = std::array<std::uint8_t, 16>;

class Address {
 public:
  Address() = default;
  Address(const sockaddr_storage& raw, socklen_t size) : raw_(raw), size_(size) {}

  /// Reads "HOST:PORT" and "[IPV6]:PORT"; "*:PORT" and ":PORT" mean all addresses. A host's name is
  /// looked up now; it may have several addresses. None: `error` says what is wrong.
  static std::vector<Address> all_of(const std::string& text, std::string& error);
  /// Names a stream of AF_CLAN.
  static std::optional<Address> of_name(const std::string& name, std::string& error);
  static Address of_ip(const Ip& ip, std::uint16_t port);
  static Address local_of(int fd);
  static Address peer_of(int fd);

  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&raw_); }
  socklen_t size() const { return size_; }
  int family() const { return raw_.ss_family; }
  bool is_tcp() const { return family() == AF_INET || family() == AF_INET6; }
  bool is_any() const;
  std::uint16_t port() const;
  /// All zeros where there is none.
  Ip ip() const;
  /// "1.2.3.4:80", "[::1]:80", "clan:NAME".
  std::string text() const;
  /// Asks whether a socket that listens there serves what is asked for at `other`.
  bool same_place(const Address& other) const;

 private:
  sockaddr_storage raw_{};
  socklen_t size_ = 0;
};

bool is_mapped_v4(const Ip& ip);

/// "10.0.0.0/8", "fd00::/8", or one address.
struct Network {
  Ip ip{};
  unsigned bits = 0;  ///< of the mapped form

  static std::optional<Network> parse(std::string_view text);
  bool contains(const Ip& other) const;
};

}  // namespace clan::gateway
