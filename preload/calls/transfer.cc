// Calls that move bytes.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/un.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "af_clan/af_clan.h"
#include "os/real.h"
#include "os/scratch.h"
#include "state/socket.h"
#include "stream/transfer.h"

extern "C" [[noreturn]] void __chk_fail();  // what the C library's own do: a message, and SIGABRT

using namespace clan::preload;

namespace {

constexpr int kMostBuffers = 1024;
constexpr std::size_t kPiece = 32768;                    ///< of what goes through memory of ours
constexpr int kNotOfTheStream = MSG_OOB | MSG_ERRQUEUE;  ///< receiving these is the kernel's

// A call that goes to the kernel while the socket is on TCP, counted so that nobody moves the socket
// meanwhile. `call` is the kernel's, `moved` ours.
template <typename Call, typename Moved>
ssize_t receiving(int fd, bool peek, Call&& call, Moved&& moved) {
  if (is_the_kernels(fd)) return call();
  Held s = hold(fd);
  if (!s) return call();
  if (!s->shared()) before_receive(fd, *s);
  UntilOpen until(fd, *s);
  for (;;) {
    if (s->inherited.load(std::memory_order_relaxed)) catch_up(fd, *s);
    if (s->shared()) return moved(*s);
    Slot& slot = *s->slot.load(std::memory_order_acquire);
    ssize_t n;
    {
      const Slot::UnderWay counted(slot.receives);
      if (!counted || s->shared() || moved_elsewhere(*s)) {
        (void)until.wait(slot.receives);
        continue;
      }
      n = call();
    }
    if (n > 0 && !peek) after_receive(fd, *s);
    return n;
  }
}

template <typename Call>
ssize_t past_pipes(Call&& call) {
  const ssize_t n = call();
  clan::Pipe::wrote_past_pipes();
  return n;
}

template <typename Call, typename Moved>
ssize_t sending(int fd, Call&& call, Moved&& moved) {
  if (is_the_kernels(fd)) return past_pipes(call);
  Held s = hold(fd);
  if (!s) return past_pipes(call);
  if (!s->shared()) before_send(fd, *s);
  UntilOpen until(fd, *s);
  for (;;) {
    if (s->inherited.load(std::memory_order_relaxed)) catch_up(fd, *s);
    if (s->shared()) return moved(*s);
    Slot& slot = *s->slot.load(std::memory_order_acquire);
    const Slot::UnderWay counted(slot.sends);
    if (counted && !s->shared() && !moved_elsewhere(*s)) return past_pipes(call);
    (void)until.wait(slot.sends);
  }
}

bool bad_buffers(const iovec* buffers, int count) {
  if (count < 0 || count > kMostBuffers || (count > 0 && buffers == nullptr)) {
    errno = EINVAL;
    return true;
  }
  return false;
}

ssize_t receive_message(int fd, Socket& s, msghdr* message, int flags) {
  if (message->msg_iovlen > kMostBuffers) {
    errno = EMSGSIZE;
    return -1;
  }
  // MSG_TRUNC on TCP: the bytes are thrown away.
  iovec nowhere[64];
  const iovec* buffers = message->msg_iov;
  auto count = static_cast<int>(message->msg_iovlen);
  if ((flags & MSG_TRUNC) != 0) {
    count = std::min(count, 64);
    for (int i = 0; i < count; ++i) nowhere[i] = {nullptr, message->msg_iov[i].iov_len};
    buffers = nowhere;
  }
  const ssize_t n = shared_receive(fd, s, buffers, count, flags & ~MSG_TRUNC);
  if (n >= 0) {
    message->msg_namelen = 0;
    message->msg_controllen = 0;
    message->msg_flags = 0;
  }
  return n;
}

// Urgent data is TCP's alone, and only TCP tells when it needs the bytes of MSG_ZEROCOPY no more.
void leave_if_tcps(int fd, int flags) {
  if ((flags & (MSG_OOB | MSG_ZEROCOPY)) != 0) leave_pipe(fd, false);
}

std::size_t bytes_of(const msghdr& message) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) n += message.msg_iov[i].iov_len;
  return n;
}

// The descriptors that a message carries.
template <typename Each>
void passed(const msghdr* message, Each&& each) {
  if (message == nullptr || message->msg_control == nullptr) return;
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr; c = CMSG_NXTHDR(const_cast<msghdr*>(message), c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < n; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      each(fd);
    }
  }
}

// The number behind a name in what /proc/PID/status says, of one line; -1: it is not there.
long number_in(const char* status, const char* name, int column) {
  const char* at = std::strstr(status, name);
  if (at == nullptr) return -1;
  for (at += std::strlen(name); column > 0 && *at != 0 && *at != '\n'; ++at) {
    if (*at == '\t') --column;
  }
  return std::strtol(at, nullptr, 10);
}

bool read_status(const char* pid, char* text, std::size_t size) {
  char path[40];
  std::snprintf(path, sizeof path, "/proc/%s/status", pid);
  const int file = static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC));
  const long n = file >= 0 ? sys::call(SYS_read, file, text, size - 1) : -1;
  if (file >= 0) sys::close(file);
  text[n > 0 ? n : 0] = 0;
  return n > 0;
}

// What we may do to find a pipe the process may, too: it is of our user, and behind no more filters of system
// calls.
bool may_as_much(pid_t pid) {
  char number[16], theirs[4096], ours[4096];
  std::snprintf(number, sizeof number, "%d", static_cast<int>(pid));
  if (!read_status(number, theirs, sizeof theirs) || !read_status("self", ours, sizeof ours)) return false;
  for (const auto& [name, column] : {std::pair{"\nUid:", 2}, {"\nSeccomp:", 1}, {"\nSeccomp_filters:", 1}}) {
    if (number_in(theirs, name, column) != number_in(ours, name, column)) return false;
  }
  return true;
}

// The process has mapped this library.
bool loads_library(pid_t pid) {
  char path[40];
  std::snprintf(path, sizeof path, "/proc/%d/maps", static_cast<int>(pid));
  const int maps = static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC));
  if (maps < 0) return false;
  constexpr char kName[] = "/libclan-preload.so";
  constexpr std::size_t kOverlap = sizeof kName - 2;
  char text[8192];
  std::size_t kept = 0;
  bool found = false;
  for (long n; !found && (n = sys::call(SYS_read, maps, text + kept, sizeof text - kept)) > 0;) {
    const std::size_t size = kept + static_cast<std::size_t>(n);
    found = ::memmem(text, size, kName, sizeof kName - 1) != nullptr;
    kept = std::min(kOverlap, size);
    std::memmove(text, text + size - kept, kept);
  }
  sys::close(maps);
  return found;
}

// Whoever gets what is sent through this AF_UNIX socket knows of pipes. The kernel says who is at the other
// end of a connection; of a pair it only says who made it.
bool receiver_knows(int through) {
  sockaddr_un name{};
  socklen_t mine = sizeof name, theirs = sizeof name;
  if (sys::call(SYS_getsockname, through, &name, &mine) != 0) return false;
  if (sys::call(SYS_getpeername, through, &name, &theirs) != 0) return false;
  ucred peer{};
  socklen_t size = sizeof peer;
  if (std::max(mine, theirs) <= sizeof(sa_family_t)) return false;
  return sys::getsockopt(through, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && proc_is_ours() &&
         loads_library(peer.pid) && may_as_much(peer.pid);
}

// Somebody else is going to have the descriptor too.
void pass_on(int fd, int through) {
  Held s = hold_current(fd);
  if (!s) return;
  s->inherited = true;
  if (!s->shared()) {
    if (put_on_its_way(fd, *s)) return;
    catch_up(fd, *s);
  }
  if (s->shared() && (s->pipe.memfd() < 0 || !receiver_knows(through))) leave_pipe(fd, true);
  s->followed = true;
  leave_to_others(fd, *s);
  if (s->shared()) {
    s->mine().words[clan::socket_face::kHolders].fetch_add(1);  // the receiver, before we may close ours
  } else {
    never_move(fd, *s);
  }
}

// It has not been sent.
void not_sent(int fd) {
  if (Held s = hold(fd)) {
    s->shared() ? (void)s->mine().words[clan::socket_face::kHolders].fetch_sub(1) : take_off_its_way(*s);
  }
}

// The kernel's calls; AF_CLAN's messages have other names.
ssize_t plain_recvfrom(int fd, void* buffer, size_t n, int flags, sockaddr* from, socklen_t* size) {
  if (is_af_clan_packet(fd)) return af_clan_recvfrom(fd, buffer, n, flags, from, size);
  return real().recvfrom(fd, buffer, n, flags, from, size);
}
ssize_t plain_sendto(int fd, const void* buffer, size_t n, int flags, const sockaddr* to, socklen_t size) {
  if (is_af_clan_packet(fd)) return af_clan_sendto(fd, buffer, n, flags, to, size);
  return real().sendto(fd, buffer, n, flags, to, size);
}
ssize_t plain_recvmsg(int fd, msghdr* message, int flags) {
  return is_af_clan_packet(fd) ? af_clan_recvmsg(fd, message, flags) : real().recvmsg(fd, message, flags);
}
ssize_t plain_sendmsg(int fd, const msghdr* message, int flags) {
  return is_af_clan_packet(fd) ? af_clan_sendmsg(fd, message, flags) : real().sendmsg(fd, message, flags);
}
int plain_recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  if (is_af_clan_packet(fd)) return af_clan_recvmmsg(fd, messages, count, flags, timeout);
  return real().recvmmsg(fd, messages, count, flags, timeout);
}
int plain_sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  if (is_af_clan_packet(fd)) return af_clan_sendmmsg(fd, messages, count, flags);
  return real().sendmmsg(fd, messages, count, flags);
}

}  // namespace

CLAN_INTERPOSE ssize_t recv(int fd, void* buffer, size_t n, int flags) {
  return receiving(
      fd, (flags & MSG_PEEK) != 0, [&] { return real().recv(fd, buffer, n, flags); },
      [&](Socket& s) -> ssize_t {
        if ((flags & kNotOfTheStream) != 0) return real().recv(fd, buffer, n, flags);
        const iovec io{(flags & MSG_TRUNC) != 0 ? nullptr : buffer, n};
        return shared_receive(fd, s, &io, 1, flags & ~MSG_TRUNC);
      });
}

CLAN_INTERPOSE ssize_t read(int fd, void* buffer, size_t n) {
  if (n == 0) return real().read(fd, buffer, n);
  return receiving(
      fd, false, [&] { return real().read(fd, buffer, n); },
      [&](Socket& s) {
        const iovec io{buffer, n};
        return shared_receive(fd, s, &io, 1, 0);
      });
}

CLAN_INTERPOSE ssize_t recvfrom(int fd, void* buffer, size_t n, int flags, sockaddr* from, socklen_t* size) {
  return receiving(
      fd, (flags & MSG_PEEK) != 0, [&] { return plain_recvfrom(fd, buffer, n, flags, from, size); },
      [&](Socket& s) -> ssize_t {
        if ((flags & kNotOfTheStream) != 0) return real().recvfrom(fd, buffer, n, flags, from, size);
        const iovec io{(flags & MSG_TRUNC) != 0 ? nullptr : buffer, n};
        const ssize_t rc = shared_receive(fd, s, &io, 1, flags & ~MSG_TRUNC);
        if (rc >= 0 && from != nullptr && size != nullptr) *size = 0;  // TCP tells no address here
        return rc;
      });
}

CLAN_INTERPOSE ssize_t readv(int fd, const iovec* buffers, int count) {
  return receiving(
      fd, false, [&] { return real().readv(fd, buffers, count); },
      [&](Socket& s) -> ssize_t {
        if (bad_buffers(buffers, count)) return -1;
        return shared_receive(fd, s, buffers, count, 0);
      });
}

// On a socket the position is no position; -1 says that it is not meant as one.
CLAN_INTERPOSE ssize_t preadv2(int fd, const iovec* buffers, int count, off_t at, int flags) {
  if (at != -1) return real().preadv2(fd, buffers, count, at, flags);
  return receiving(
      fd, false, [&] { return real().preadv2(fd, buffers, count, at, flags); },
      [&](Socket& s) -> ssize_t {
        if (bad_buffers(buffers, count)) return -1;
        return shared_receive(fd, s, buffers, count, (flags & RWF_NOWAIT) != 0 ? MSG_DONTWAIT : 0);
      });
}
CLAN_INTERPOSE ssize_t preadv64v2(int fd, const iovec* buffers, int count, off64_t at, int flags) {
  return preadv2(fd, buffers, count, at, flags);
}

CLAN_INTERPOSE ssize_t recvmsg(int fd, msghdr* message, int flags) {
  const ssize_t n = receiving(
      fd, (flags & MSG_PEEK) != 0, [&] { return plain_recvmsg(fd, message, flags); },
      [&](Socket& s) -> ssize_t {
        if ((flags & kNotOfTheStream) != 0) return real().recvmsg(fd, message, flags);
        return receive_message(fd, s, message, flags);
      });
  if (n >= 0 && message->msg_controllen > 0) {
    passed(message, [&](int other) { adopt_passed(other, fd, (flags & MSG_PEEK) != 0); });
  }
  return n;
}

CLAN_INTERPOSE int recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  const ssize_t received = receiving(
      fd, (flags & MSG_PEEK) != 0,
      [&]() -> ssize_t { return plain_recvmmsg(fd, messages, count, flags, timeout); },
      [&](Socket& s) -> ssize_t {
        if ((flags & kNotOfTheStream) != 0) return real().recvmmsg(fd, messages, count, flags, timeout);
        ssize_t n = 0;
        for (unsigned i = 0; i < count; ++i) {
          const int more = i > 0 && (flags & MSG_WAITFORONE) != 0 ? MSG_DONTWAIT : 0;
          const ssize_t got = receive_message(fd, s, &messages[i].msg_hdr, (flags & ~MSG_WAITFORONE) | more);
          if (got < 0) return n > 0 ? n : -1;
          messages[i].msg_len = static_cast<unsigned>(got);
          ++n;
        }
        return n;
      });
  for (ssize_t i = 0; i < received; ++i) {
    if (messages[i].msg_hdr.msg_controllen > 0) {
      passed(&messages[i].msg_hdr, [&](int other) { adopt_passed(other, fd, (flags & MSG_PEEK) != 0); });
    }
  }
  return static_cast<int>(received);
}

CLAN_INTERPOSE ssize_t send(int fd, const void* buffer, size_t n, int flags) {
  leave_if_tcps(fd, flags);
  return sending(
      fd, [&] { return real().send(fd, buffer, n, flags); },
      [&](Socket& s) -> ssize_t {
        const iovec io{const_cast<void*>(buffer), n};
        return shared_send(fd, s, &io, 1, flags);
      });
}

CLAN_INTERPOSE ssize_t write(int fd, const void* buffer, size_t n) {
  return sending(
      fd, [&] { return real().write(fd, buffer, n); },
      [&](Socket& s) {
        const iovec io{const_cast<void*>(buffer), n};
        return shared_send(fd, s, &io, 1, 0);
      });
}

CLAN_INTERPOSE ssize_t sendto(int fd, const void* buffer, size_t n, int flags, const sockaddr* to,
                              socklen_t size) {
  leave_if_tcps(fd, flags);
  return sending(
      fd, [&] { return plain_sendto(fd, buffer, n, flags, to, size); },
      [&](Socket& s) -> ssize_t {
        const iovec io{const_cast<void*>(buffer), n};
        return shared_send(fd, s, &io, 1, flags);
      });
}

CLAN_INTERPOSE ssize_t writev(int fd, const iovec* buffers, int count) {
  return sending(
      fd, [&] { return real().writev(fd, buffers, count); },
      [&](Socket& s) -> ssize_t {
        if (bad_buffers(buffers, count)) return -1;
        return shared_send(fd, s, buffers, count, 0);
      });
}

CLAN_INTERPOSE ssize_t pwritev2(int fd, const iovec* buffers, int count, off_t at, int flags) {
  if (at != -1) return real().pwritev2(fd, buffers, count, at, flags);
  return sending(
      fd, [&] { return real().pwritev2(fd, buffers, count, at, flags); },
      [&](Socket& s) -> ssize_t {
        if (bad_buffers(buffers, count)) return -1;
        return shared_send(fd, s, buffers, count, (flags & RWF_NOWAIT) != 0 ? MSG_DONTWAIT : 0);
      });
}
CLAN_INTERPOSE ssize_t pwritev64v2(int fd, const iovec* buffers, int count, off64_t at, int flags) {
  return pwritev2(fd, buffers, count, at, flags);
}

CLAN_INTERPOSE ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  leave_if_tcps(fd, flags);
  const bool passes = message != nullptr && message->msg_controllen > 0;
  if (passes) passed(message, [fd](int other) { pass_on(other, fd); });
  const ssize_t rc = sending(
      fd, [&] { return plain_sendmsg(fd, message, flags); },
      [&](Socket& s) -> ssize_t {
        if (message->msg_iovlen > kMostBuffers) {
          errno = EMSGSIZE;
          return -1;
        }
        return shared_send(fd, s, message->msg_iov, static_cast<int>(message->msg_iovlen), flags);
      });
  if (passes && rc < 0) {
    KeepErrno errno_of_send;
    passed(message, not_sent);
  }
  return rc;
}

CLAN_INTERPOSE int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  leave_if_tcps(fd, flags);
  for (unsigned i = 0; messages != nullptr && i < count; ++i) {
    const msghdr& m = messages[i].msg_hdr;
    if (m.msg_controllen > 0)
      passed(&m, [](int other) { leave_pipe(other, true); });  // how many will go is not known
  }
  return static_cast<int>(sending(
      fd, [&]() -> ssize_t { return plain_sendmmsg(fd, messages, count, flags); },
      [&](Socket& s) -> ssize_t {
        ssize_t n = 0;
        for (unsigned i = 0; i < count; ++i) {
          const msghdr& m = messages[i].msg_hdr;
          if (m.msg_iovlen > kMostBuffers) {
            if (n == 0) errno = EMSGSIZE;
            return n > 0 ? n : -1;
          }
          const ssize_t sent = shared_send(fd, s, m.msg_iov, static_cast<int>(m.msg_iovlen), flags);
          if (sent < 0) return n > 0 ? n : -1;
          messages[i].msg_len = static_cast<unsigned>(sent);
          ++n;
          if (static_cast<std::size_t>(sent) < bytes_of(m)) break;  // nothing may come behind the gap
        }
        return n;
      }));
}

namespace {

// From a file, piece by piece: the pipe has no pages to hand over.
ssize_t send_file(int to, Socket& s, int from, off_t* offset, size_t n) {
  const Scratch scratch(kPiece);
  if (!scratch) {
    errno = ENOMEM;
    return -1;
  }
  char* buffer = scratch.as<char>();
  std::size_t sent = 0;
  off_t at = offset != nullptr ? *offset : -1;
  while (sent < n) {
    const std::size_t want = std::min(n - sent, kPiece);
    const ssize_t got = offset != nullptr ? ::pread(from, buffer, want, at)
                                          : static_cast<ssize_t>(sys::call(SYS_read, from, buffer, want));
    if (got < 0) return sent > 0 ? static_cast<ssize_t>(sent) : -1;
    if (got == 0) break;
    std::size_t done = 0;
    while (done < static_cast<std::size_t>(got)) {
      const iovec io{buffer + done, static_cast<std::size_t>(got) - done};
      const ssize_t k = shared_send(to, s, &io, 1, 0);
      if (k <= 0) break;
      done += static_cast<std::size_t>(k);
    }
    sent += done;
    at += static_cast<off_t>(done);
    if (done < static_cast<std::size_t>(got)) {
      // Not all went: the file's own position, if that is what counts, goes back.
      if (offset == nullptr) ::lseek(from, static_cast<off_t>(done) - got, SEEK_CUR);
      if (sent == 0) return -1;
      break;
    }
  }
  if (offset != nullptr) *offset = at;
  return static_cast<ssize_t>(sent);
}

}  // namespace

CLAN_INTERPOSE ssize_t sendfile(int to, int from, off_t* offset, size_t n) {
  return sending(
      to, [&] { return real().sendfile(to, from, offset, n); },
      [&](Socket& s) { return send_file(to, s, from, offset, n); });
}

CLAN_INTERPOSE ssize_t sendfile64(int to, int from, off_t* offset, size_t n) {
  return sendfile(to, from, offset, n);
}

CLAN_INTERPOSE ssize_t splice(int from, off64_t* from_offset, int to, off64_t* to_offset, size_t n,
                              unsigned flags) {
  Held source = hold(from), target = hold(to);
  if (source && source->inherited) catch_up(from, *source);
  if (target && target->inherited) catch_up(to, *target);
  // Splicing takes the bytes past us: a connection that does it stays with the kernel.
  if (source && !source->shared()) (void)keep_on_tcp(from, *source);
  if (target && !target->shared()) (void)keep_on_tcp(to, *target);
  const bool by_us = (source && source->shared()) || (target && target->shared());
  if (!by_us) return real().splice(from, from_offset, to, to_offset, n, flags);
  if (from_offset != nullptr || to_offset != nullptr) {  // one is a socket, and so the other is a pipe
    errno = ESPIPE;
    return -1;
  }
  const Scratch scratch(kPiece);
  if (!scratch) {
    errno = ENOMEM;
    return -1;
  }
  char* buffer = scratch.as<char>();
  if (source && source->shared()) {
    // The other one is a kernel pipe: never take out more than it has room for.
    pollfd room{to, POLLOUT, 0};
    const bool wait = (flags & SPLICE_F_NONBLOCK) == 0 && (sys::fcntl(to, F_GETFL) & O_NONBLOCK) == 0;
    if (const int rc = sys::poll(&room, 1, wait ? -1 : 0); rc <= 0) {
      if (rc == 0) errno = EAGAIN;
      return -1;
    }
    int size = sys::fcntl(to, F_GETPIPE_SZ), used = 0;
    sys::ioctl(to, FIONREAD, &used);
    const std::size_t most = std::min({n, kPiece, static_cast<std::size_t>(std::max(size - used, 1))});
    const iovec io{buffer, most > 4096 ? most - most % 4096 : std::min<std::size_t>(most, 4096)};
    const ssize_t got = shared_receive(from, *source, &io, 1, 0);  // SPLICE_F_NONBLOCK is not for sockets
    if (got <= 0) return got;
    for (ssize_t put = 0; put < got;) {
      const long k = sys::call(SYS_write, to, buffer + put, got - put);
      if (k < 0 && errno != EINTR && errno != EAGAIN) return put > 0 ? put : -1;
      if (k > 0) put += k;
      if (k < 0) {
        pollfd p{to, POLLOUT, 0};
        sys::poll(&p, 1, -1);
      }
    }
    return got;
  }
  if (target && target->shared()) {
    if (is_nonblocking(to, *target)) {
      if ((readiness(to, *target, false) & POLLOUT) == 0) {
        errno = EAGAIN;
        return -1;
      }
    }
    pollfd there{from, POLLIN, 0};
    if (const int rc = sys::poll(&there, 1, (flags & SPLICE_F_NONBLOCK) != 0 ? 0 : -1); rc <= 0) {
      if (rc == 0) errno = EAGAIN;
      return -1;
    }
    const ssize_t got = sys::call(SYS_read, from, buffer, std::min(n, kPiece));
    if (got <= 0) return got;
    for (ssize_t put = 0; put < got;) {
      const iovec io{buffer + put, static_cast<std::size_t>(got - put)};
      const ssize_t k = shared_send(to, *target, &io, 1, 0);
      if (k > 0) {
        put += k;
      } else if (k < 0 && errno == EAGAIN) {
        pollfd p{to, 0, 0};
        sys::poll(&p, 1, 1);  // what has left the kernel's pipe cannot go back
      } else if (k < 0 && errno != EINTR) {
        return put > 0 ? put : -1;
      }
    }
    return got;
  }
  return real().splice(from, from_offset, to, to_offset, n, flags);
}

// --- names by which the C library's headers call the same ----------------------------------------------

CLAN_INTERPOSE ssize_t __read(int fd, void* buffer, size_t n) { return read(fd, buffer, n); }
CLAN_INTERPOSE ssize_t __write(int fd, const void* buffer, size_t n) { return write(fd, buffer, n); }
CLAN_INTERPOSE ssize_t __recv(int fd, void* buffer, size_t n, int flags) {
  return recv(fd, buffer, n, flags);
}
CLAN_INTERPOSE ssize_t __send(int fd, const void* buffer, size_t n, int flags) {
  return send(fd, buffer, n, flags);
}

CLAN_INTERPOSE ssize_t __read_chk(int fd, void* buffer, size_t n, size_t room) {
  if (n > room) __chk_fail();
  return read(fd, buffer, n);
}
CLAN_INTERPOSE ssize_t __recv_chk(int fd, void* buffer, size_t n, size_t room, int flags) {
  if (n > room) __chk_fail();
  return recv(fd, buffer, n, flags);
}
CLAN_INTERPOSE ssize_t __recvfrom_chk(int fd, void* buffer, size_t n, size_t room, int flags, sockaddr* from,
                                      socklen_t* size) {
  if (n > room) __chk_fail();
  return recvfrom(fd, buffer, n, flags, from, size);
}
