#include "address.h"

#include <arpa/inet.h>
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <system_error>

namespace clan::tool {
namespace {

constexpr std::array<unsigned char, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

}  // namespace

Address make_address(const void* ip, bool v4, std::uint16_t port) {
  Address address;
  address.port = port;
  std::memcpy(address.ip.data() + (v4 ? 12 : 0), ip, v4 ? 4 : 16);
  if (v4) std::copy(kMapped.begin(), kMapped.end(), address.ip.begin());
  return address;
}

std::optional<Address> parse_address(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon != 8 && colon != 32) return std::nullopt;
  std::array<std::uint32_t, 4> words{};  // each printed as a number, but in network order in memory
  for (std::size_t i = 0; i < colon / 8; ++i) {
    const char* digits = text.data() + 8 * i;
    if (std::from_chars(digits, digits + 8, words[i], 16).ec != std::errc()) return std::nullopt;
  }
  std::uint16_t port = 0;
  const auto port_text = text.substr(colon + 1);
  if (std::from_chars(port_text.data(), port_text.data() + port_text.size(), port, 16).ec !=
      std::errc()) {
    return std::nullopt;
  }
  return make_address(words.data(), colon == 8, port);
}

std::string to_string(const Address& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (std::equal(kMapped.begin(), kMapped.end(), address.ip.begin())) {
    inet_ntop(AF_INET, address.ip.data() + 12, text, sizeof text);
    return text;
  }
  inet_ntop(AF_INET6, address.ip.data(), text, sizeof text);
  return text;
}

std::string with_port(const Address& address) {
  const std::string ip = to_string(address);
  const bool v6 = ip.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", ip, v6 ? "]" : "", address.port);
}

}  // namespace clan::tool
