// Calls that make, name, copy and close sockets; fcntl and ioctl.
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

#include <algorithm>

#include "af_clan/af_clan.h"
#include "attach/attach.h"
#include "calls/interpose.h"
#include "clan/af_clan.h"
#include "clan/face/pipe.h"
#include "demote/demote.h"
#include "migrate/policy.h"
#include "os/memory_owner.h"
#include "os/real.h"
#include "os/sys.h"
#include "share/fd_events.h"
#include "share/process_end.h"
#include "stream/close.h"
#include "stream/ending.h"
#include "stream/readiness.h"
#include "table/fd_table.h"
#include "table/internal_fds.h"
#include "tcp/tcp_backlog.h"

using namespace clan::preload;

namespace {

bool is_tcp_listener(int fd) {
  if (known(fd)) return true;
  KeepErrno keep;
  int protocol = 0;
  socklen_t size = sizeof protocol;
  return sys::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) == 0 &&
         protocol == IPPROTO_TCP;
}

int accepted(int listener, int fd, int flags) {
  if (fd < 0) return fd;
  gone(fd);
  if (is_tcp_listener(listener)) {
    adopt(fd, false, (flags & SOCK_NONBLOCK) != 0 ? 1 : 0);
    was_accepted(fd);
  }
  return fd;
}

int accept_af_clan(int listener, sockaddr* address, socklen_t* size, int flags) {
  const int fd =
      accepted(listener,
               with_room([&] { return real().accept4(listener, nullptr, nullptr, flags); }), flags);
  return fd >= 0 ? af_clan_accepted(listener, fd, address, size) : fd;
}

int socket_af_clan(int type, int protocol) {
  const int domain = af_clan_kernel_domain(type, protocol);
  if (domain < 0) return -1;
  const int fd = ::socket(domain, type, 0);
  if (fd < 0 || af_clan_appeared(fd, type)) return fd;
  ::close(fd);
  return fail(ENOMEM);
}

// By which connect() disconnects.
bool is_nowhere(const sockaddr* address, socklen_t size) {
  return address != nullptr && size >= sizeof address->sa_family && address->sa_family == AF_UNSPEC;
}

// dup2 closes `to`, so the library acts before, while `to` can still be used.
void before_dup_onto(int fd, int to) {
  if (fd == to || !(is_ours(to) || known(to))) return;
  KeepErrno keep;
  if (sys::fcntl(fd, F_GETFD) >= 0) about_to_go(to);
}

bool is_connected(int fd) {
  KeepErrno keep;
  sockaddr_storage name;
  socklen_t size = sizeof name;
  return sys::call(SYS_getpeername, fd, &name, &size) == 0;
}

}  // namespace

CLAN_INTERPOSED(int, connect, (int fd, const sockaddr* address, socklen_t size),
                (fd, address, size)) {
  if (is_af_clan(fd) && !is_nowhere(address, size)) return af_clan_connect(fd, address, size);
  SocketRef s = acquire(fd);
  if (!s || address == nullptr || size < sizeof address->sa_family)
    return real().connect(fd, address, size);
  const bool used = s->sends.load(std::memory_order_relaxed) > 0 ||
                    s->receives.load(std::memory_order_relaxed) > 0;
  const bool disconnects = is_nowhere(address, size);
  // Knowledge of the other end, and offers to it, do not hold for the next one.
  if (disconnects && (used || s->inherited)) never_move(fd, *s, clan::reasons::Why::kDisconnected);
  const int rc = real().connect(fd, address, size);
  clan::Pipe::note_kernel_write();
  if (rc != 0 && errno != EINPROGRESS) return rc;
  if (disconnects) s->anew.set();
  if (address->sa_family == AF_INET || address->sa_family == AF_INET6) {
    s->client = true;
    was_connected(fd, *s);
  }
  return rc;
}

CLAN_INTERPOSED(int, accept, (int fd, sockaddr* address, socklen_t* size), (fd, address, size)) {
  if (is_af_clan(fd)) return accept_af_clan(fd, address, size, 0);
  return accepted(fd, with_room([&] { return real().accept(fd, address, size); }), 0);
}

CLAN_INTERPOSED(int, accept4, (int fd, sockaddr* address, socklen_t* size, int flags),
                (fd, address, size, flags)) {
  if (is_af_clan(fd)) return accept_af_clan(fd, address, size, flags);
  return accepted(fd, with_room([&] { return real().accept4(fd, address, size, flags); }), flags);
}

CLAN_INTERPOSED(int, bind, (int fd, const sockaddr* address, socklen_t size), (fd, address, size)) {
  return is_af_clan(fd) ? af_clan_bind(fd, address, size) : real().bind(fd, address, size);
}

CLAN_INTERPOSED(int, listen, (int fd, int backlog), (fd, backlog)) {
  return is_af_clan(fd) ? af_clan_listen(fd, backlog) : real().listen(fd, backlog);
}

CLAN_INTERPOSED(int, getsockname, (int fd, sockaddr* address, socklen_t* size),
                (fd, address, size)) {
  return is_af_clan(fd) ? af_clan_getsockname(fd, address, size)
                        : real().getsockname(fd, address, size);
}

CLAN_INTERPOSED(int, getpeername, (int fd, sockaddr* address, socklen_t* size),
                (fd, address, size)) {
  if (is_af_clan(fd)) return af_clan_getpeername(fd, address, size);
  if (const SocketRef s = acquire(fd); s && s->shared()) return name_of_peer(fd, *s, address, size);
  return real().getpeername(fd, address, size);
}

CLAN_INTERPOSED(int, socket, (int domain, int type, int protocol), (domain, type, protocol)) {
  if (domain == AF_CLAN) return socket_af_clan(type, protocol);
  const int fd = with_room([&] { return real().socket(domain, type, protocol); });
  if (fd < 0) return fd;
  gone(fd);
  constexpr int kType = 0xf;
  if ((domain == AF_INET || domain == AF_INET6) && (type & kType) == SOCK_STREAM &&
      (protocol == 0 || protocol == IPPROTO_TCP)) {
    adopt(fd, false, (type & SOCK_NONBLOCK) != 0 ? 1 : 0);
  }
  return fd;
}

CLAN_INTERPOSED(int, close, (int fd), (fd)) {
  // The other end may become ready, past pipes.
  if (const SocketRef s = acquire(fd); !s || !s->shared()) clan::Pipe::note_kernel_write();
  const Closing closing(fd);
  about_to_go(fd);
  return real().close(fd);
}

CLAN_INTERPOSE void closefrom(int first) {
  if (!in_borrowed_memory()) gone_range(static_cast<unsigned>(std::max(first, 0)), ~0u);
  real().closefrom(first);
}

CLAN_INTERPOSED(int, close_range, (unsigned first, unsigned last, int flags),
                (first, last, flags)) {
  if ((flags & static_cast<int>(CLOSE_RANGE_UNSHARE)) != 0) before_leaving_table();
  // With other flags it closes nothing.
  if ((flags & ~static_cast<int>(CLOSE_RANGE_UNSHARE)) == 0 && !in_borrowed_memory())
    gone_range(first, last);
  return real().close_range(first, last, flags);
}

CLAN_INTERPOSED(int, dup, (int fd), (fd)) {
  const int to = with_room([fd] { return real().dup(fd); });
  if (to >= 0) same(fd, to);
  return to;
}

CLAN_INTERPOSED(int, dup2, (int fd, int to), (fd, to)) {
  const Closing closing(to);
  before_dup_onto(fd, to);
  const int rc = real().dup2(fd, to);
  if (rc >= 0) same(fd, to);
  return rc;
}

CLAN_INTERPOSED(int, dup3, (int fd, int to, int flags), (fd, to, flags)) {
  const Closing closing(to);
  if ((flags & ~O_CLOEXEC) == 0) before_dup_onto(fd, to);  // else it fails, and closes nothing
  const int rc = real().dup3(fd, to, flags);
  if (rc >= 0) same(fd, to);
  return rc;
}

CLAN_INTERPOSED(int, fcntl, (int fd, int command, void* argument), (fd, command, argument)) {
  // SIGIO reports bytes of TCP only.
  if (command == F_SETFL && (reinterpret_cast<std::uintptr_t>(argument) & O_ASYNC) != 0)
    leave_pipe(fd, false, clan::reasons::Why::kSigio);
  const bool copies = command == F_DUPFD || command == F_DUPFD_CLOEXEC;
  const int rc = copies ? with_room([&] { return real().fcntl(fd, command, argument); })
                        : real().fcntl(fd, command, argument);
  if (rc < 0) return rc;
  if (copies) same(fd, rc);
  if (command == F_SETFL) {
    if (SocketRef s = acquire(fd))
      s->nonblocking = (reinterpret_cast<std::uintptr_t>(argument) & O_NONBLOCK) != 0 ? 1 : 0;
  }
  return rc;
}

CLAN_INTERPOSED(int, fcntl64, (int fd, int command, void* argument), (fd, command, argument)) {
  return call_fcntl(fd, command, argument);
}

CLAN_INTERPOSED(int, ioctl, (int fd, unsigned long request, void* argument),
                (fd, request, argument)) {
  const bool of_sent = request == SIOCOUTQ || request == SIOCOUTQNSD;
  if (request == FIONREAD || of_sent) {
    SocketRef s = acquire(fd);
    if (s && s->shared() && argument != nullptr && !(of_sent && sends_tcp(*s))) {
      // Bytes in the pipe count as acknowledged.
      *static_cast<int*>(argument) = of_sent ? 0 : bytes_to_read(fd, *s);
      return 0;
    }
  }
  if (request == SIOCATMARK) {
    // Urgent data comes by TCP, after the whole pipe.
    if (SocketRef s = acquire(fd); s && s->shared()) {
      (void)readiness(fd, *s, true);
      if (s->pipe.front() == clan::PipeFront::kBytes && argument != nullptr) {
        *static_cast<int*>(argument) = 0;
        return 0;
      }
    }
  }
  if (request == FIOASYNC && argument != nullptr && *static_cast<int*>(argument) != 0)
    leave_pipe(fd, false, clan::reasons::Why::kSigio);
  const int rc = real().ioctl(fd, request, argument);
  if (rc == 0 && request == FIONBIO && argument != nullptr) {
    if (SocketRef s = acquire(fd)) s->nonblocking = *static_cast<int*>(argument) != 0 ? 1 : 0;
  }
  return rc;
}

CLAN_INTERPOSE int sockatmark(int fd) {
  int at = 0;
  return ::ioctl(fd, SIOCATMARK, &at) == 0 ? at : -1;
}

CLAN_INTERPOSED(int, shutdown, (int fd, int how), (fd, how)) {
  SocketRef s = acquire(fd);
  const bool known_how = how == SHUT_RD || how == SHUT_WR || how == SHUT_RDWR;
  if (s && known_how) {
    // A half-closed connection is not worth moving, and its end could not be distinguished from a
    // close.
    if (!s->shared() && is_connected(fd))
      (void)keep_on_tcp(fd, *s, clan::reasons::Why::kHalfClosed);
    if (s->shared()) return shared_shutdown(fd, *s, how);
  }
  clan::Pipe::note_kernel_write();
  const int rc = real().shutdown(fd, how);
  if (rc == 0 && s) s->open_file().pin();
  return rc;
}
