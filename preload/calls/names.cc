// The resolver's calls, with "clan:NAME" for a host. A colon cannot be in a host's name.
#include <netinet/in.h>

#include <cstdlib>
#include <cstring>

#include "calls/interpose.h"
#include "clan/af_clan.h"
#include "os/real.h"

using namespace clan::preload;

namespace {

constexpr char kScheme[] = "clan:";
constexpr std::size_t kSchemeSize = sizeof kScheme - 1;

struct Kind {
  int type, protocol;  ///< the protocol that callers may have asked for; the answer is 0
};
constexpr Kind kKinds[] = {
    {SOCK_STREAM, IPPROTO_TCP}, {SOCK_DGRAM, IPPROTO_UDP}, {SOCK_SEQPACKET, 0}};

// In one piece with its address, so that the C library's freeaddrinfo() frees both.
addrinfo* make(int type, const sockaddr_clan& address, socklen_t size) {
  auto* made = static_cast<addrinfo*>(std::calloc(1, sizeof(addrinfo) + sizeof address));
  if (made == nullptr) return nullptr;
  made->ai_family = AF_CLAN;
  made->ai_socktype = type;
  made->ai_addrlen = size;
  made->ai_addr = reinterpret_cast<sockaddr*>(made + 1);
  std::memcpy(made->ai_addr, &address, sizeof address);
  return made;
}

int resolve(const char* name, const char* service, const addrinfo& hints, addrinfo** result) {
  char text[CLAN_NAME_MAX + 2];
  const bool with_service = service != nullptr && *service != 0;
  const int n = std::snprintf(text, sizeof text, "%s%s%s", name, with_service ? ":" : "",
                              with_service ? service : "");
  sockaddr_clan address;
  const socklen_t size = n > CLAN_NAME_MAX ? 0 : clan_address(&address, text);
  if (*name == 0 || size == 0) return EAI_NONAME;
  addrinfo* first = nullptr;
  addrinfo** last = &first;
  for (const Kind& kind : kKinds) {
    if (hints.ai_socktype != 0 && hints.ai_socktype != kind.type) continue;
    if (hints.ai_protocol != 0 && hints.ai_protocol != kind.protocol) continue;
    *last = make(kind.type, address, size);
    if (*last == nullptr) {
      if (first != nullptr) ::freeaddrinfo(first);
      return EAI_MEMORY;
    }
    last = &(*last)->ai_next;
  }
  if (first == nullptr) return EAI_SOCKTYPE;
  if ((hints.ai_flags & AI_CANONNAME) != 0) {
    char host[kSchemeSize + sizeof text];
    std::snprintf(host, sizeof host, "%s%s", kScheme, text);
    first->ai_canonname = ::strdup(host);
  }
  *result = first;
  return 0;
}

}  // namespace

CLAN_INTERPOSE int getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                               addrinfo** result) {
  const int family = hints != nullptr ? hints->ai_family : AF_UNSPEC;
  if (node == nullptr || std::strncmp(node, kScheme, kSchemeSize) != 0 ||
      (family != AF_UNSPEC && family != AF_CLAN)) {
    return real().getaddrinfo(node, service, hints, result);
  }
  return resolve(node + kSchemeSize, service, hints != nullptr ? *hints : addrinfo{}, result);
}

CLAN_INTERPOSE int getnameinfo(const sockaddr* address, socklen_t size, char* host,
                               socklen_t host_size, char* service, socklen_t service_size,
                               int flags) {
  if (address == nullptr || size < sizeof address->sa_family || address->sa_family != AF_CLAN) {
    return real().getnameinfo(address, size, host, host_size, service, service_size, flags);
  }
  char name[CLAN_NAME_MAX + 1];
  clan_name(reinterpret_cast<const sockaddr_clan*>(address), size, name);
  if (host != nullptr && host_size > 0 &&
      std::snprintf(host, host_size, "%s%s", kScheme, name) >= static_cast<int>(host_size)) {
    return EAI_OVERFLOW;
  }
  if (service != nullptr && service_size > 0) *service = 0;
  return 0;
}
