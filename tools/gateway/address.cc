#include "address.h"

#include <arpa/inet.h>
#include <clan/af_clan.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace clan::gateway {
namespace {

constexpr Ip kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr std::size_t kMappedBytes = 12;

template <typename T>
const T& as(const sockaddr* raw) {
  return *reinterpret_cast<const T*>(raw);
}

template <typename Ask>
Address asked(int fd, Ask ask) {
  sockaddr_storage raw{};
  socklen_t size = sizeof raw;
  return ask(fd, reinterpret_cast<sockaddr*>(&raw), &size) == 0 ? Address(raw, size) : Address();
}

}  // namespace

bool is_mapped_v4(const Ip& ip) {
  return std::equal(kMapped.begin(), kMapped.begin() + kMappedBytes, ip.begin());
}

std::vector<Address> Address::all_of(const std::string& text, std::string& error) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) {
    error = fmt::format("{} has no port", text);
    return {};
  }
  std::string host = text.substr(0, colon), port = text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  else if (host.find(':') != std::string::npos) {
    error = fmt::format("{}: write an IPv6 address as [ADDRESS]:PORT", text);
    return {};
  }
  if (host == "*") host.clear();
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (host.empty() ? AI_PASSIVE : 0);
  const int err = getaddrinfo(host.empty() ? "::" : host.c_str(), port.c_str(), &hints, &found);
  if (err != 0 || found == nullptr) {
    error = fmt::format("{}: {}", text, gai_strerror(err));
    return {};
  }
  std::vector<Address> all;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    sockaddr_storage raw{};
    std::memcpy(&raw, one->ai_addr, one->ai_addrlen);
    all.emplace_back(raw, one->ai_addrlen);
  }
  freeaddrinfo(found);
  return all;
}

std::optional<Address> Address::of_name(const std::string& name, std::string& error) {
  Address address;
  address.size_ = clan_address(reinterpret_cast<sockaddr_clan*>(&address.raw_), name.c_str());
  if (address.size_ == 0 || name.empty()) {
    error = fmt::format("clan:{}: a name has 1 to {} bytes", name, CLAN_NAME_MAX);
    return std::nullopt;
  }
  return address;
}

Address Address::of_ip(const Ip& ip, std::uint16_t port) {
  sockaddr_storage raw{};
  if (is_mapped_v4(ip)) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(raw);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&v4.sin_addr, ip.data() + kMappedBytes, sizeof v4.sin_addr);
    return {raw, sizeof v4};
  }
  auto& v6 = reinterpret_cast<sockaddr_in6&>(raw);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  std::memcpy(&v6.sin6_addr, ip.data(), ip.size());
  return {raw, sizeof v6};
}

Address Address::local_of(int fd) { return asked(fd, getsockname); }
Address Address::peer_of(int fd) { return asked(fd, getpeername); }

std::uint16_t Address::port() const {
  if (family() == AF_INET) return ntohs(as<sockaddr_in>(raw()).sin_port);
  return family() == AF_INET6 ? ntohs(as<sockaddr_in6>(raw()).sin6_port) : 0;
}

Ip Address::ip() const {
  Ip ip{};
  if (family() == AF_INET) {
    ip = kMapped;
    std::memcpy(ip.data() + kMappedBytes, &as<sockaddr_in>(raw()).sin_addr, 4);
  } else if (family() == AF_INET6) {
    std::memcpy(ip.data(), &as<sockaddr_in6>(raw()).sin6_addr, ip.size());
  }
  return ip;
}

bool Address::is_any() const {
  const Ip mine = ip();
  return is_tcp() && (mine == Ip{} || mine == kMapped);
}

std::string Address::text() const {
  if (family() == AF_CLAN) {
    char name[CLAN_NAME_MAX + 1];
    clan_name(reinterpret_cast<const sockaddr_clan*>(&raw_), size_, name);
    return fmt::format("clan:{}", name);
  }
  if (!is_tcp()) return "unknown";
  const Ip mine = ip();
  char host[INET6_ADDRSTRLEN] = "";
  const bool v4 = is_mapped_v4(mine);
  inet_ntop(v4 ? AF_INET : AF_INET6, mine.data() + (v4 ? kMappedBytes : 0), host, sizeof host);
  return v4 ? fmt::format("{}:{}", host, port()) : fmt::format("[{}]:{}", host, port());
}

bool Address::same_place(const Address& other) const {
  if (!is_tcp() || !other.is_tcp()) return text() == other.text() && family() == other.family();
  return port() == other.port() && (ip() == other.ip() || (is_any() && other.is_any()));
}

std::optional<Network> Network::parse(std::string_view text) {
  const std::size_t slash = text.find('/');
  const std::string host(text.substr(0, slash));
  if (host.find('\0') != std::string::npos) return std::nullopt;  // inet_pton() stops there
  Network network;
  unsigned most = 128, before = 0;
  if (host.find(':') != std::string::npos) {
    if (inet_pton(AF_INET6, host.c_str(), network.ip.data()) != 1) return std::nullopt;
  } else {
    network.ip = kMapped;
    if (inet_pton(AF_INET, host.c_str(), network.ip.data() + kMappedBytes) != 1)
      return std::nullopt;
    most = 32;
    before = 96;
  }
  unsigned bits = most;
  if (slash != std::string_view::npos) {
    const std::string_view digits = text.substr(slash + 1);
    const auto [end, err] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
    if (err != std::errc() || end != digits.data() + digits.size() || bits > most)
      return std::nullopt;
  }
  network.bits = before + bits;
  return network;
}

bool Network::contains(const Ip& other) const {
  const std::size_t whole = bits / 8;
  if (!std::equal(ip.begin(), ip.begin() + whole, other.begin())) return false;
  return bits % 8 == 0 || ((ip[whole] ^ other[whole]) >> (8 - bits % 8)) == 0;
}

}  // namespace clan::gateway
