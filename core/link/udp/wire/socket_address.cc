#include "link/udp/wire/socket_address.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <cstring>
#include <string>

#include "link/udp/io/datagram_socket.h"

namespace clan::udp {

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
