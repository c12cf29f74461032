#include "system/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <vector>

namespace clan::ofi {
namespace {

const sockaddr_in& v4(const SocketAddress& a) {
  return reinterpret_cast<const sockaddr_in&>(a.storage);
}
const sockaddr_in6& v6(const SocketAddress& a) {
  return reinterpret_cast<const sockaddr_in6&>(a.storage);
}

// The host part, as 16 bytes in two words. IPv4 as a mapped address.
Name host_of(const SocketAddress& address) {
  in6_addr host{};
  if (address.family() == AF_INET) {
    host.s6_addr[10] = host.s6_addr[11] = 0xff;
    std::memcpy(&host.s6_addr[12], &v4(address).sin_addr, 4);
  } else {
    host = v6(address).sin6_addr;
  }
  Name name;
  std::memcpy(&name.high, &host.s6_addr[0], 8);
  std::memcpy(&name.low, &host.s6_addr[8], 8);
  return name;
}

struct Interface {
  SocketAddress address;
  bool preferred = false;  ///< by FI_CLAN_INTERFACE
};

// The addresses of this host's interfaces, asked for once.
const std::vector<Interface>& interfaces() {
  static const std::vector<Interface>* const all = [] {
    auto* found = new std::vector<Interface>;
    char* wanted = nullptr;
    if (fi_param_get_str(&g_provider, "interface", &wanted) != 0) wanted = nullptr;
    ifaddrs* list = nullptr;
    if (::getifaddrs(&list) != 0) return found;
    for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
      const int family = i->ifa_addr->sa_family;
      if (family != AF_INET && family != AF_INET6) continue;
      found->push_back({read_address(i->ifa_addr, family == AF_INET ? sizeof(sockaddr_in)
                                                                    : sizeof(sockaddr_in6)),
                        wanted != nullptr && std::strcmp(wanted, i->ifa_name) == 0});
    }
    ::freeifaddrs(list);
    return found;
  }();
  return *all;
}

bool is_ours(const SocketAddress& address) {
  if (address.is_any() || is_loopback(address)) return true;
  const Name host = host_of(address);
  for (const Interface& own : interfaces()) {
    if (host_of(own.address) == host) return true;
  }
  return false;
}

bool is_link_local(const SocketAddress& address) {
  return address.family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6(address).sin6_addr);
}

}  // namespace

bool is_loopback(const SocketAddress& address) {
  if (address.family() == AF_INET) return (ntohl(v4(address).sin_addr.s_addr) >> 24) == 127;
  if (IN6_IS_ADDR_V4MAPPED(&v6(address).sin6_addr)) return v6(address).sin6_addr.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&v6(address).sin6_addr);
}

std::uint16_t SocketAddress::port() const {
  return ntohs(family() == AF_INET ? v4(*this).sin_port : v6(*this).sin6_port);
}

void SocketAddress::set_port(std::uint16_t port) {
  if (family() == AF_INET) {
    reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(port);
  }
}

bool SocketAddress::is_any() const {
  if (family() == AF_INET) return v4(*this).sin_addr.s_addr == INADDR_ANY;
  return IN6_IS_ADDR_UNSPECIFIED(&v6(*this).sin6_addr);
}

SocketAddress read_address(const void* address, std::size_t length) {
  SocketAddress result;
  if (address == nullptr || length < sizeof(sa_family_t)) return result;
  sa_family_t family;
  std::memcpy(&family, static_cast<const char*>(address) + offsetof(sockaddr, sa_family),
              sizeof family);
  const std::size_t needed = family == AF_INET    ? sizeof(sockaddr_in)
                             : family == AF_INET6 ? sizeof(sockaddr_in6)
                                                  : 0;
  if (needed == 0 || length < needed) return result;
  std::memcpy(&result.storage, address, needed);
  result.length = static_cast<socklen_t>(needed);
  return result;
}

Name name_of(const SocketAddress& address) {
  Name name = is_ours(address) ? Name{} : host_of(address);
  name.port = address.port();
  return name;
}

Name outer_name_of(const SocketAddress& address) {
  Name name = host_of(address);
  name.port = address.port();
  return name;
}

SocketAddress address_of(const Name& name) {
  in6_addr host;
  std::memcpy(&host.s6_addr[0], &name.high, 8);
  std::memcpy(&host.s6_addr[8], &name.low, 8);
  if (IN6_IS_ADDR_V4MAPPED(&host)) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(name.port);
    std::memcpy(&a.sin_addr, &host.s6_addr[12], 4);
    return read_address(&a, sizeof a);
  }
  sockaddr_in6 a{};
  a.sin6_family = AF_INET6;
  a.sin6_port = htons(name.port);
  a.sin6_addr = host;
  return read_address(&a, sizeof a);
}

std::string host_text(const Name& name) {
  const SocketAddress address = address_of(name);
  char host[INET6_ADDRSTRLEN] = "?";
  if (address.family() == AF_INET) {
    ::inet_ntop(AF_INET, &v4(address).sin_addr, host, sizeof host);
    return host;
  }
  ::inet_ntop(AF_INET6, &v6(address).sin6_addr, host, sizeof host);
  return "[" + std::string(host) + "]";
}

std::size_t address_bytes(std::uint32_t format) {
  return format == FI_SOCKADDR_IN6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

int resolve(const char* node, const char* service, std::uint64_t flags, std::uint32_t format,
            bool passive, SocketAddress* address) {
  addrinfo hints{};
  hints.ai_family = format == FI_SOCKADDR_IN    ? AF_INET
                    : format == FI_SOCKADDR_IN6 ? AF_INET6
                                                : AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags =
      (passive ? AI_PASSIVE : 0) | ((flags & FI_NUMERICHOST) != 0 ? AI_NUMERICHOST : 0);
  addrinfo* found = nullptr;
  const int rc = ::getaddrinfo(node, service, &hints, &found);
  if (rc != 0) {
    FI_INFO(&g_provider, FI_LOG_CORE, "no address for %s, %s: %s\n", node != nullptr ? node : "-",
            service != nullptr ? service : "-", ::gai_strerror(rc));
    return rc == EAI_MEMORY ? -FI_ENOMEM : -FI_ENODATA;
  }
  // IPv4 first: that is what programs expect that do not say.
  const addrinfo* best = found;
  for (const addrinfo* i = found; i != nullptr; i = i->ai_next) {
    if (i->ai_family == AF_INET) {
      best = i;
      break;
    }
  }
  *address = read_address(best->ai_addr, best->ai_addrlen);
  ::freeaddrinfo(found);
  return address->valid() ? 0 : -FI_ENODATA;
}

SocketAddress source_towards(const SocketAddress& host) {
  const int family = host.family();
  const int fd = ::socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return {};
  SocketAddress to = host, source;
  to.set_port(9);  // any: nothing is sent
  source.length = sizeof source.storage;
  const bool found =
      ::connect(fd, to.get(), to.length) == 0 &&
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&source.storage), &source.length) == 0;
  ::close(fd);
  if (!found) return {};
  source = read_address(&source.storage, source.length);
  if (!source.valid() || source.is_any() || is_loopback(source) || is_link_local(source)) return {};
  source.set_port(0);
  return source;
}

SocketAddress own_address(int family) {
  for (const bool preferred : {true, false}) {
    for (const auto& [own, named] : interfaces()) {
      if (own.family() != family || is_link_local(own) || (preferred && !named)) continue;
      if (named || !is_loopback(own)) return own;
    }
  }
  if (family == AF_INET6) {
    sockaddr_in6 a{};
    a.sin6_family = AF_INET6;
    a.sin6_addr = in6addr_loopback;
    return read_address(&a, sizeof a);
  }
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return read_address(&a, sizeof a);
}

std::string to_text(const SocketAddress& address) {
  char host[INET6_ADDRSTRLEN] = "?";
  if (address.family() == AF_INET) {
    ::inet_ntop(AF_INET, &v4(address).sin_addr, host, sizeof host);
    return "fi_sockaddr_in://" + std::string(host) + ":" + std::to_string(address.port());
  }
  if (address.family() == AF_INET6) {
    ::inet_ntop(AF_INET6, &v6(address).sin6_addr, host, sizeof host);
    return "fi_sockaddr_in6://[" + std::string(host) + "]:" + std::to_string(address.port());
  }
  return "?";
}

}  // namespace clan::ofi
