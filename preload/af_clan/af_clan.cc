#include "af_clan/af_clan.h"

#include <linux/tcp.h>

#include <algorithm>
#include <iterator>

#include "af_clan/af_clan_name.h"
#include "clan/detail/log.h"
#include "kernel/sock_diag.h"
#include "os/config.h"
#include "os/real.h"
#include "os/signals.h"
#include "os/sys.h"
#include "table/fd_table.h"
#include "table/internal_fds.h"

namespace clan::preload {
namespace {

using Answer = SockDiag::Answer;

Answer ask(SockDiag& kernel, const sockaddr_in& local, const sockaddr_in& remote,
           SockDiag::Found* found) {
  return kernel.ask(endpoint_of(local), endpoint_of(remote), 0, found);
}

// Finds the socket that listens at a place and nowhere else. `other`: another one has the port.
Answer listener_at(SockDiag& kernel, const sockaddr_in& place, SockDiag::Found* found,
                   bool* other) {
  const Answer answer = ask(kernel, place, sockaddr_in{}, found);
  *other = answer == Answer::kFound &&
           (found->family != AF_INET || !(found->local == endpoint_of(place)));
  return *other ? Answer::kNone : answer;
}

int bind_to(int fd, const sockaddr_in& place) {
  return real().bind(fd, reinterpret_cast<const sockaddr*>(&place), sizeof place);
}

int set_reuse(int fd, int value) {
  KeepErrno keep;
  const int before = std::max(0, sys::socket_option(fd, SO_REUSEADDR));
  sys::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &value, sizeof value);
  return before;
}

int take_place(int fd, const sockaddr_in& place) {
  if (bind_to(fd, place) == 0) return 0;
  if (errno != EADDRINUSE) return -1;
  // Perhaps only old connections of a predecessor, in TIME_WAIT.
  const int before = set_reuse(fd, 1);
  const int rc = bind_to(fd, place);
  set_reuse(fd, before);
  return rc;
}

int bind_stream(int fd, const ClanName& name) {
  SockDiag kernel;
  SockDiag::Found found;
  bool others[ClanName::kPlaces];
  for (unsigned i = 0; i < ClanName::kPlaces; ++i) {
    if (listener_at(kernel, name.place(i), &found, &others[i]) != Answer::kFound) continue;
    // Sockets with SO_REUSEPORT may share a name as they share a port: the kernel decides.
    return take_place(fd, name.place(i));
  }
  const bool* const usable = std::ranges::find(others, false);
  if (usable == std::end(others)) return fail(EADDRINUSE);
  return take_place(fd, name.place(static_cast<unsigned>(usable - others)));
}

bool trusts(uid_t owner, const ClanName& name) {
  if (config().allows_uid(owner)) return true;
  CLAN_WARN("\"%.*s\" belongs to user %u, which CLAN_UIDS does not name; not connected",
            static_cast<int>(name.size), name.text, owner);
  errno = EACCES;
  return false;
}

// Finds the place where the name's owner listens. -1 with errno: none that is trusted.
int find_owner(SockDiag& kernel, const ClanName& name, sockaddr_in* place, SockDiag::Found* owner) {
  for (unsigned i = 0; i < ClanName::kPlaces; ++i) {
    *place = name.place(i);
    bool other = false;
    switch (listener_at(kernel, *place, owner, &other)) {
      case Answer::kFound: return trusts(owner->uid, name) ? 0 : -1;
      case Answer::kNone: continue;
      case Answer::kUnknown:
        CLAN_WARN(
            "the kernel does not say which user has a name of AF_CLAN (sock_diag); not connected");
        return fail(EACCES);
    }
  }
  return fail(ECONNREFUSED);
}

// Whether we are connected to the socket that we had checked, or to no other user's.
bool reached(SockDiag& kernel, int fd, const sockaddr_in& place, const SockDiag::Found& owner) {
  sockaddr_in local{};
  socklen_t size = sizeof local;
  if (sys::call(SYS_getsockname, fd, &local, &size) != 0) return true;
  for (int look = 0; look < 3; ++look) {
    SockDiag::Found end;
    if (ask(kernel, place, local, &end) != Answer::kFound) return true;  // gone: no byte arrives
    if (end.inode == owner.inode) return true;                           // not through to it yet
    if (end.inode != 0) return end.uid == owner.uid;                     // accepted
    // It waits for the listener to accept it. Without a listener it has been accepted since.
    bool other = false;
    if (listener_at(kernel, place, &end, &other) == Answer::kFound) {
      return end.inode == owner.inode || end.uid == owner.uid;
    }
  }
  return false;
}

int connect_stream(int fd, const ClanName& name) {
  sockaddr_in place{};
  SockDiag::Found owner;
  SockDiag kernel;
  if (find_owner(kernel, name, &place, &owner) != 0) {
    const int error = errno;
    sockaddr_in peer;
    socklen_t size = sizeof peer;
    errno = sys::call(SYS_getpeername, fd, &peer, &size) == 0 ? EISCONN : error;
    return -1;
  }
  set_reuse(fd, 1);  // its own name, if any, must not outlive it in TIME_WAIT
  const int rc = real().connect(fd, reinterpret_cast<const sockaddr*>(&place), sizeof place);
  if (rc != 0 && errno != EINPROGRESS) return rc;
  const int error = errno;
  if (!reached(kernel, fd, place, owner)) {
    CLAN_WARN("\"%.*s\" changed hands while we connected to it; not connected",
              static_cast<int>(name.size), name.text);
    sys::call(SYS_shutdown, fd, SHUT_RDWR);
    return fail(EACCES);
  }
  remember_af_clan(fd, nullptr, &name);
  if (SocketRef s = acquire(fd); s && !s->shared()) s->client = true;
  errno = error;
  return rc;
}

int connect_packet(int fd, int type, const ClanName& name) {
  sockaddr_un address;
  const socklen_t size = name.to_unix(type, &address);
  const int rc = real().connect(fd, reinterpret_cast<const sockaddr*>(&address), size);
  if (rc != 0 || type != SOCK_SEQPACKET) return rc;
  ucred owner{};
  socklen_t owner_size = sizeof owner;
  if (sys::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &owner, &owner_size) == 0 &&
      trusts(owner.uid, name)) {
    return 0;
  }
  KeepErrno keep;
  sys::call(SYS_shutdown, fd, SHUT_RDWR);
  return -1;
}

// Returns a packet socket's name, which the kernel knows.
int packet_name(int fd, long call, sockaddr* address, socklen_t* size) {
  sockaddr_un kernel_address;
  socklen_t kernel_size = sizeof kernel_address;
  if (sys::call(call, fd, &kernel_address, &kernel_size) != 0) return -1;
  ClanName name;
  name.from_unix(kernel_address, kernel_size);
  return name.write(address, size);
}

}  // namespace

int af_clan_kernel_domain(int type, int protocol) {
  constexpr int kType = 0xf;
  type &= kType;
  if (type != SOCK_STREAM && type != SOCK_SEQPACKET && type != SOCK_DGRAM)
    return fail(ESOCKTNOSUPPORT);
  if (protocol != 0) return fail(EPROTONOSUPPORT);
  return type == SOCK_STREAM ? AF_INET : AF_UNIX;
}

bool af_clan_appeared(int fd, int type) {
  constexpr int kType = 0xf;
  type &= kType;
  const int yes = 1;
  if (type == SOCK_STREAM) sys::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  return af_clan_appear(fd, type, AfClanNames{});
}

int af_clan_bind(int fd, const sockaddr* address, socklen_t size) {
  ClanName name;
  if (!name.read(address, size, EINVAL)) return -1;
  const int type = af_clan_type(fd);
  if (type == SOCK_STREAM && !af_clan_names(fd).local.empty()) return fail(EINVAL);
  const bool any = name.empty();
  for (;;) {
    if (any) name = ClanName::random();
    int rc;
    if (type == SOCK_STREAM) {
      rc = bind_stream(fd, name);
      if (rc == 0) remember_af_clan(fd, &name, nullptr);
    } else {
      sockaddr_un kernel_address;
      const socklen_t kernel_size = name.to_unix(type, &kernel_address);
      rc = real().bind(fd, reinterpret_cast<sockaddr*>(&kernel_address), kernel_size);
    }
    if (rc == 0 || !any || errno != EADDRINUSE) return rc;
  }
}

int af_clan_listen(int fd, int backlog) {
  if (af_clan_type(fd) == SOCK_STREAM) {
    // TCP would take a port at all addresses.
    if (af_clan_names(fd).local.empty()) return fail(EINVAL);
    set_reuse(fd, 1);  // for the successor, see take_place
  }
  return real().listen(fd, backlog);
}

int af_clan_connect(int fd, const sockaddr* address, socklen_t size) {
  ClanName name;
  if (!name.read(address, size, EAFNOSUPPORT)) return -1;
  if (name.empty()) return fail(EINVAL);
  const int type = af_clan_type(fd);
  return type == SOCK_STREAM ? connect_stream(fd, name) : connect_packet(fd, type, name);
}

int af_clan_getsockname(int fd, sockaddr* address, socklen_t* size) {
  if (af_clan_type(fd) != SOCK_STREAM) return packet_name(fd, SYS_getsockname, address, size);
  return af_clan_names(fd).local.write(address, size);
}

int af_clan_getpeername(int fd, sockaddr* address, socklen_t* size) {
  if (af_clan_type(fd) != SOCK_STREAM) return packet_name(fd, SYS_getpeername, address, size);
  sockaddr_in peer;
  socklen_t peer_size = sizeof peer;
  if (sys::call(SYS_getpeername, fd, &peer, &peer_size) != 0) return -1;
  return af_clan_names(fd).peer.write(address, size);
}

int af_clan_accepted(int listener, int fd, sockaddr* address, socklen_t* size) {
  const int type = af_clan_type(listener);
  af_clan_appear(fd, type, AfClanNames{af_clan_names(listener).local, {}});
  if (address == nullptr) return fd;
  // A client that is gone has no name either.
  const bool named = type != SOCK_STREAM && packet_name(fd, SYS_getpeername, address, size) == 0;
  if (named || ClanName{}.write(address, size) == 0) return fd;
  KeepErrno keep;
  forget_af_clan(fd);
  forget(fd);
  sys::close(fd);
  return -1;
}

}  // namespace clan::preload
