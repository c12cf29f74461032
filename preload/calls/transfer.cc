// Calls that move bytes.
#include <sys/socket.h>
#include <sys/uio.h>

#include "af_clan/af_clan.h"
#include "calls/counted_call.h"
#include "calls/interpose.h"
#include "os/real.h"
#include "stream/receive.h"
#include "stream/send.h"

extern "C" [[noreturn]] void __chk_fail();  // the C library's: a message, and SIGABRT

using namespace clan::preload;

namespace {

// AF_CLAN's messages have other names in the kernel.
ssize_t plain_recvfrom(int fd, void* buffer, size_t n, int flags, sockaddr* from, socklen_t* size) {
  if (is_af_clan_packet(fd)) return af_clan_recvfrom(fd, buffer, n, flags, from, size);
  return real().recvfrom(fd, buffer, n, flags, from, size);
}
ssize_t plain_sendto(int fd, const void* buffer, size_t n, int flags, const sockaddr* to,
                     socklen_t size) {
  if (is_af_clan_packet(fd)) return af_clan_sendto(fd, buffer, n, flags, to, size);
  return real().sendto(fd, buffer, n, flags, to, size);
}

// `name_size`: of recvfrom(), or null.
template <typename Call>
ssize_t read_bytes(int fd, void* buffer, size_t n, int flags, Call&& call,
                   socklen_t* name_size = nullptr) {
  return receiving(fd, flags, call, [&](Socket& s) -> ssize_t {
    if ((flags & kNotOfTheStream) != 0) return call();
    const iovec io{(flags & MSG_TRUNC) != 0 ? nullptr : buffer, n};
    const ssize_t rc = shared_receive(fd, s, &io, 1, flags);
    if (rc >= 0 && name_size != nullptr) *name_size = 0;  // as TCP
    return rc;
  });
}
template <typename Call>
ssize_t write_bytes(int fd, const void* buffer, size_t n, int flags, Call&& call) {
  return sending(fd, flags, call, [&](Socket& s) -> ssize_t {
    const iovec io{const_cast<void*>(buffer), n};
    return shared_send(fd, s, &io, 1, flags);
  });
}

// `flags`: MSG_DONTWAIT, or none.
template <typename Call>
ssize_t read_vector(int fd, const iovec* buffers, int count, int flags, Call&& call) {
  return receiving(fd, flags, call, [&](Socket& s) -> ssize_t {
    if (bad_buffers(buffers, count)) return -1;
    return has_no_bytes(buffers, count) ? 0 : shared_receive(fd, s, buffers, count, flags);
  });
}
template <typename Call>
ssize_t write_vector(int fd, const iovec* buffers, int count, int flags, Call&& call) {
  return sending(fd, flags, call, [&](Socket& s) -> ssize_t {
    if (bad_buffers(buffers, count)) return -1;
    return has_no_bytes(buffers, count) ? 0 : shared_send(fd, s, buffers, count, flags);
  });
}
int waiting_of(int flags_of_vector) {
  return (flags_of_vector & RWF_NOWAIT) != 0 ? MSG_DONTWAIT : 0;
}

}  // namespace

CLAN_INTERPOSED_BYTES(ssize_t, recv, (int fd, void* buffer, size_t n, int flags),
                      (fd, buffer, n, flags)) {
  return read_bytes(fd, buffer, n, flags, [&] { return real().recv(fd, buffer, n, flags); });
}

CLAN_INTERPOSED_BYTES(ssize_t, read, (int fd, void* buffer, size_t n), (fd, buffer, n)) {
  if (n == 0) return real().read(fd, buffer, n);
  return read_bytes(fd, buffer, n, 0, [&] { return real().read(fd, buffer, n); });
}

CLAN_INTERPOSED_BYTES(ssize_t, recvfrom,
                      (int fd, void* buffer, size_t n, int flags, sockaddr* from, socklen_t* size),
                      (fd, buffer, n, flags, from, size)) {
  return read_bytes(
      fd, buffer, n, flags, [&] { return plain_recvfrom(fd, buffer, n, flags, from, size); },
      from != nullptr ? size : nullptr);
}

CLAN_INTERPOSED_BYTES(ssize_t, readv, (int fd, const iovec* buffers, int count),
                      (fd, buffers, count)) {
  return read_vector(fd, buffers, count, 0, [&] { return real().readv(fd, buffers, count); });
}

// Only -1 is a valid position on a socket.
CLAN_INTERPOSED_BYTES(ssize_t, preadv2,
                      (int fd, const iovec* buffers, int count, off_t at, int flags),
                      (fd, buffers, count, at, flags)) {
  const auto call = [&] { return real().preadv2(fd, buffers, count, at, flags); };
  return at != -1 ? call() : read_vector(fd, buffers, count, waiting_of(flags), call);
}
CLAN_INTERPOSE ssize_t preadv64v2(int fd, const iovec* buffers, int count, off64_t at, int flags) {
  return preadv2(fd, buffers, count, at, flags);
}

CLAN_INTERPOSED_BYTES(ssize_t, send, (int fd, const void* buffer, size_t n, int flags),
                      (fd, buffer, n, flags)) {
  leave_if_tcps(fd, flags);
  return write_bytes(fd, buffer, n, flags, [&] { return real().send(fd, buffer, n, flags); });
}

CLAN_INTERPOSED_BYTES(ssize_t, write, (int fd, const void* buffer, size_t n), (fd, buffer, n)) {
  return write_bytes(fd, buffer, n, 0, [&] { return real().write(fd, buffer, n); });
}

CLAN_INTERPOSED_BYTES(ssize_t, sendto,
                      (int fd, const void* buffer, size_t n, int flags, const sockaddr* to,
                       socklen_t size),
                      (fd, buffer, n, flags, to, size)) {
  leave_if_tcps(fd, flags);
  return write_bytes(fd, buffer, n, flags,
                     [&] { return plain_sendto(fd, buffer, n, flags, to, size); });
}

CLAN_INTERPOSED_BYTES(ssize_t, writev, (int fd, const iovec* buffers, int count),
                      (fd, buffers, count)) {
  return write_vector(fd, buffers, count, 0, [&] { return real().writev(fd, buffers, count); });
}

CLAN_INTERPOSED_BYTES(ssize_t, pwritev2,
                      (int fd, const iovec* buffers, int count, off_t at, int flags),
                      (fd, buffers, count, at, flags)) {
  const auto call = [&] { return real().pwritev2(fd, buffers, count, at, flags); };
  return at != -1 ? call() : write_vector(fd, buffers, count, waiting_of(flags), call);
}
CLAN_INTERPOSE ssize_t pwritev64v2(int fd, const iovec* buffers, int count, off64_t at, int flags) {
  return pwritev2(fd, buffers, count, at, flags);
}

// --- names that the C library's headers use ------------------------------------------------------

CLAN_INTERPOSE ssize_t __read(int fd, void* buffer, size_t n) { return read(fd, buffer, n); }
CLAN_INTERPOSE ssize_t __write(int fd, const void* buffer, size_t n) {
  return write(fd, buffer, n);
}
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
CLAN_INTERPOSE ssize_t __recvfrom_chk(int fd, void* buffer, size_t n, size_t room, int flags,
                                      sockaddr* from, socklen_t* size) {
  if (n > room) __chk_fail();
  return recvfrom(fd, buffer, n, flags, from, size);
}
