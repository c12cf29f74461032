#include "af_clan/af_clan_far.h"

#include <linux/tcp.h>

#include <cerrno>
#include <cstring>

#include "clan/log.h"
#include "far/carrier.h"
#include "os/config.h"
#include "os/real.h"
#include "os/sys.h"
#include "state/internal_fds.h"

namespace clan::preload {
namespace {

constexpr char kFar[] = "udp:";
constexpr int kInsideMs = 1000;  ///< of a connection inside this host

int fail(int error) {
  errno = error;
  return -1;
}

bool name_of(long call, int fd, sockaddr_in* name) {
  socklen_t size = sizeof *name;
  return sys::call(call, fd, name, &size) == 0 && name->sin_family == AF_INET;
}

bool becomes_ready(int fd, short what) {
  pollfd one{fd, what, 0};
  return sys::poll(&one, 1, kInsideMs) == 1;
}

// A socket that listens where nobody looks, or -1.
int make_listener(sockaddr_in* at) {
  const int fd = static_cast<int>(
      sys::call(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  *at = {};
  at->sin_family = AF_INET;
  at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  constexpr int kBacklog = 16;  // others of this host may find it
  if (fd >= 0 && sys::call(SYS_bind, fd, at, sizeof *at) == 0 &&
      sys::call(SYS_listen, fd, kBacklog) == 0 && name_of(SYS_getsockname, fd, at)) {
    return fd;
  }
  const KeepErrno keep;
  if (fd >= 0) sys::close(fd);
  return -1;
}

// The other end of `fd`, and of nobody else's socket; -1.
int accept_end_of(int fd, int listener) {
  sockaddr_in mine, theirs;
  if (!name_of(SYS_getsockname, fd, &mine)) return -1;
  while (becomes_ready(listener, POLLIN)) {
    const int end = static_cast<int>(
        sys::call(SYS_accept4, listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (end < 0) return -1;
    if (name_of(SYS_getpeername, end, &theirs) && theirs.sin_port == mine.sin_port &&
        theirs.sin_addr.s_addr == mine.sin_addr.s_addr) {
      return end;
    }
    sys::close(end);
  }
  return fail(ETIMEDOUT);
}

// Connects `fd` to an internal socket: that one, or -1 with errno.
int connect_to_us(int fd) {
  sockaddr_in at;
  const int listener = make_listener(&at);
  if (listener < 0) return -1;
  int end = -1;
  const int rc = real().connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at);
  if (rc == 0 || (errno == EINPROGRESS && becomes_ready(fd, POLLOUT))) {
    end = accept_end_of(fd, listener);
  }
  const KeepErrno keep;
  sys::close(listener);
  if (end < 0) return -1;
  const int yes = 1;
  sys::setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  return move_high(end);
}

}  // namespace

bool is_far_name(const ClanName& name) {
  return name.size >= sizeof kFar - 1 && std::memcmp(name.text, kFar, sizeof kFar - 1) == 0;
}

int connect_far(int fd, const ClanName& name) {
  sockaddr_in peer;
  if (name_of(SYS_getpeername, fd, &peer)) return fail(EISCONN);
  if (!config().net || !has_carrier()) {
    CLAN_WARN("\"%.*s\" is on another host, which needs CLAN_NET (clan run --net) and a key",
              static_cast<int>(name.size), name.text);
    return fail(ENETUNREACH);
  }
  int error = 0;
  Dialled* dialled = dial_name(name.text, name.size, &error);
  if (dialled == nullptr) return fail(error);
  const int end = connect_to_us(fd);
  const KeepErrno keep;
  carry_name(dialled, end);
  return end >= 0 ? 0 : -1;
}

void offer_to_other_hosts(const ClanName& name, int (*open)(const char* name, std::size_t size)) {
  const KeepErrno keep;
  if (config().net && has_carrier()) offer_name(name.text, name.size, open);
}

}  // namespace clan::preload
