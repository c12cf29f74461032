#include "attach/peer_auth.h"

#include <netinet/in.h>

#include <cstring>

#include "clan/detail/clock.h"
#include "clan/detail/log.h"
#include "os/config.h"
#include "os/sys.h"

namespace clan::preload {
namespace {

using reasons::Why;

bool is_loopback(const in6_addr& a) {
  return IN6_IS_ADDR_LOOPBACK(&a) || (IN6_IS_ADDR_V4MAPPED(&a) && a.s6_addr[12] == 127);
}

}  // namespace

bool same_host(Socket& s, const Route& r) {
  if (s.place == Socket::Place::kNotAsked) {
    const bool here =
        is_loopback(r.remote.address) ||
        std::memcmp(&r.remote.address, &r.local.address, sizeof r.local.address) == 0 ||
        other_end_is_here(r, monotonic_ns());
    s.place = here ? Socket::Place::kHere : Socket::Place::kElsewhere;
  }
  return s.place == Socket::Place::kHere;
}

Why not_here(SockDiag& kernel, int fd, const Route& route) {
  switch (kernel.has(fd, route)) {
    case SockDiag::Answer::kFound: return Why::kNone;
    case SockDiag::Answer::kNone: return Why::kOtherNetwork;
    case SockDiag::Answer::kUnknown: break;
  }
  return Why::kNoNetlink;
}

Why why_untrusted(int fd, int rendezvous, const Route& route) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (sys::getsockopt(rendezvous, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return Why::kOfferLost;
  SockDiag kernel;
  SockDiag::Found found;
  if (const Why why = not_here(kernel, fd, route); why != Why::kNone) return why;
  if (kernel.ask(route.remote, route.local, route.interface, &found) != SockDiag::Answer::kFound)
    return Why::kOfferLost;
  // Closed meanwhile: it has no owner, and uid is none.
  if (found.inode == 0) return Why::kOfferLost;
  const uid_t owner = found.uid;
  if (owner != credentials.uid) {
    CLAN_WARN("user %u offered shared memory for a connection of user %u; refused", credentials.uid,
              owner);
    return Why::kNotOwner;
  }
  if (config().allows_uid(owner)) return Why::kNone;
  return config().is_anybody(owner) ? Why::kUnmappedUser : Why::kOtherUser;
}

std::uint32_t inode_of_other_end(int fd) {
  Route route;
  SockDiag kernel;
  SockDiag::Found owner;
  const bool found =
      route_of(fd, &route) && not_here(kernel, fd, route) == Why::kNone &&
      kernel.ask(route.remote, route.local, route.interface, &owner) == SockDiag::Answer::kFound;
  return found ? owner.inode : 0;
}

}  // namespace clan::preload
