#include "link/udp/wire/socket_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace clan::udp {

SocketAddress socket_address(const sockaddr_storage& in) {
  SocketAddress a;
  if (in.ss_family == AF_INET6) {
    const auto& s = reinterpret_cast<const sockaddr_in6&>(in);
    a.port = ntohs(s.sin6_port);
    a.scope = s.sin6_scope_id;
    std::memcpy(a.ip.data(), &s.sin6_addr, 16);
  } else if (in.ss_family == AF_INET) {
    const auto& s = reinterpret_cast<const sockaddr_in&>(in);
    a.port = ntohs(s.sin_port);
    a.ip = kMappedIpv4;
    std::memcpy(a.ip.data() + 12, &s.sin_addr, 4);
  }
  return a;
}

bool is_ipv4(const SocketAddress& a) {
  return std::equal(a.ip.begin(), a.ip.begin() + 12, kMappedIpv4.begin());
}

bool is_wildcard(const SocketAddress& a) {
  return std::all_of(a.ip.begin() + (is_ipv4(a) ? 12 : 0), a.ip.end(),
                     [](auto byte) { return byte == 0; });
}

std::string to_string(const SocketAddress& a) {
  char text[INET6_ADDRSTRLEN] = "";
  const bool ipv4 = is_ipv4(a);
  (void)::inet_ntop(ipv4 ? AF_INET : AF_INET6, a.ip.data() + (ipv4 ? 12 : 0), text, sizeof text);
  const std::string host = ipv4 ? text : "[" + std::string(text) + "]";
  return host + ":" + std::to_string(a.port);
}

namespace {
Result<SocketAddress> look_up(const char* text, int flags) {
  std::string host(text);
  const auto colon = host.rfind(':');
  if (colon == std::string::npos) return Error{EINVAL, "an address is HOST:PORT"};
  const std::string port = host.substr(colon + 1);
  host.resize(colon);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0 || found == nullptr) {
    return Error{ENOENT, "no such host or port"};
  }
  sockaddr_storage storage{};
  std::memcpy(&storage, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return socket_address(storage);
}
}  // namespace

Result<SocketAddress> parse_address(const char* text) { return look_up(text, 0); }

Result<SocketAddress> parse_numeric_address(const char* text) {
  return look_up(text, AI_NUMERICHOST | AI_NUMERICSERV);
}

}  // namespace clan::udp
