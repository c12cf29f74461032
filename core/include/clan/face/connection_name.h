// The service name by which both ends of a TCP connection between hosts find each other. It names
// the connection, so the accepting host's directory can ask the kernel for its user, and that
// user's processes for the service.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

namespace clan {

/// The client is the end that connected. Addresses as both ends see them, IPv4 ones mapped.
struct ConnectionName {
  in6_addr client{}, server{};
  std::uint16_t client_port = 0, server_port = 0;

  /// "net1.0a4e0002.40000.0a4e0001.80"
  std::string service() const {
    char text[128];
    char ends[2][33];
    hex(client, ends[0]), hex(server, ends[1]);
    std::snprintf(text, sizeof text, "net1.%s.%u.%s.%u", ends[0], client_port, ends[1],
                  server_port);
    return text;
  }

  /// False: `service` is no such name.
  bool read(const std::string& service) {
    char ends[2][33] = {};
    unsigned ports[2] = {};
    int used = 0;
    if (std::sscanf(service.c_str(), "net1.%32[0-9a-f].%5u.%32[0-9a-f].%5u%n", ends[0], &ports[0],
                    ends[1], &ports[1], &used) != 4 ||
        !from_hex(ends[0], &client) || !from_hex(ends[1], &server) || ports[0] > 65'535 ||
        ports[1] > 65'535) {
      return false;
    }
    client_port = static_cast<std::uint16_t>(ports[0]);
    server_port = static_cast<std::uint16_t>(ports[1]);
    // One way to write each.
    return static_cast<std::size_t>(used) == service.size() && this->service() == service;
  }

 private:
  static void hex(const in6_addr& address, char* to) {
    for (std::size_t i = IN6_IS_ADDR_V4MAPPED(&address) ? 12 : 0; i < 16; ++i, to += 2)
      std::snprintf(to, 3, "%02x", address.s6_addr[i]);
  }
  static bool from_hex(const char* text, in6_addr* to) {
    const std::size_t digits = std::strlen(text);
    if (digits != 8 && digits != 32) return false;
    *to = {};
    if (digits == 8) to->s6_addr[10] = to->s6_addr[11] = 0xff;
    for (std::size_t i = 0; i < digits / 2; ++i) {
      unsigned byte = 0;
      if (std::sscanf(text + 2 * i, "%2x", &byte) != 1) return false;
      to->s6_addr[16 - digits / 2 + i] = static_cast<std::uint8_t>(byte);
    }
    return true;
  }
};

}  // namespace clan
