// From a file to a socket, and between a socket and a kernel pipe: piece by piece, as shared memory
// has no pages to hand over.
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "attach/attach.h"
#include "calls/counted_call.h"
#include "calls/interpose.h"
#include "demote/demote.h"
#include "os/real.h"
#include "os/scratch.h"
#include "os/sys.h"
#include "stream/blocking.h"
#include "stream/ending.h"
#include "stream/iovec_slice.h"
#include "stream/readiness.h"
#include "stream/receive.h"
#include "stream/send.h"
#include "table/fd_table.h"

using namespace clan::preload;

namespace {

constexpr std::size_t kPiece = 32768;

// Bytes that are read from a socket or a pipe cannot go back, so the kernel refuses these.
bool has_position(int from) {
  if (::lseek(from, 0, SEEK_CUR) >= 0) return true;
  if (errno == ESPIPE) errno = EINVAL;
  return false;
}

ssize_t send_file(int to, Socket& s, int from, off_t* offset, size_t n) {
  if (offset == nullptr && !has_position(from)) return -1;
  n = std::min(n, kMostInCall);
  const Scratch scratch(kPiece);
  if (!scratch) return fail(ENOMEM);
  char* buffer = scratch.as<char>();
  std::size_t sent = 0;
  off_t at = offset != nullptr ? *offset : -1;
  while (sent < n) {
    const std::size_t want = std::min(n - sent, kPiece);
    const ssize_t got = offset != nullptr
                            ? ::pread(from, buffer, want, at)
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
      // Not all was sent: restore the file's own position, if that is used.
      if (offset == nullptr) ::lseek(from, static_cast<off_t>(done) - got, SEEK_CUR);
      if (sent == 0) return -1;
      break;
    }
  }
  if (offset != nullptr) *offset = at;
  return static_cast<ssize_t>(sent);
}

bool goes_into_pipe(int fd) {
  const KeepErrno keep;
  return sys::fcntl(fd, F_GETPIPE_SZ) >= 0;
}

// False, with errno: no descriptor, or another one.
bool is_pipe(int fd) {
  if (goes_into_pipe(fd)) return true;
  if (sys::fcntl(fd, F_GETFD) >= 0) errno = EINVAL;  // else it is EBADF
  return false;
}

bool waits_for_pipe(int pipe, unsigned flags) {
  return (flags & SPLICE_F_NONBLOCK) == 0 && (sys::fcntl(pipe, F_GETFL) & O_NONBLOCK) == 0;
}

// The bytes that a pipe with room takes at once. One that is not empty may have a single buffer
// left, however few bytes it holds.
std::size_t certain_room(int pipe) {
  constexpr std::size_t kOneBuffer = 4096;
  int used = 0;
  const int size = sys::fcntl(pipe, F_GETPIPE_SZ);
  if (size <= 0 || sys::ioctl(pipe, FIONREAD, &used) != 0 || used > 0) return kOneBuffer;
  return static_cast<std::size_t>(size);
}

// Waits for events of a kernel pipe. -1 with errno; EAGAIN: not ready, and it must not wait.
int poll_pipe(pollfd* pipe, unsigned flags) {
  const int rc = sys::poll(pipe, 1, waits_for_pipe(pipe->fd, flags) ? -1 : 0);
  return rc == 0 ? fail(EAGAIN) : rc;
}

// From a connection into a kernel pipe.
ssize_t splice_out(int from, Socket& source, int to, char* buffer, std::size_t n, unsigned flags) {
  pollfd room{to, POLLOUT, 0};
  if (poll_pipe(&room, flags) < 0) return -1;
  if ((room.revents & POLLERR) != 0) return broken_pipe(0);         // nobody would read it
  const iovec io{buffer, std::min({n, kPiece, certain_room(to)})};  // what is taken must fit
  // SPLICE_F_NONBLOCK is not for sockets.
  const ssize_t got = shared_receive(from, source, &io, 1, 0);
  if (got <= 0) return got;
  for (ssize_t put = 0; put < got;) {
    const long k = sys::call(SYS_write, to, buffer + put, got - put);
    if (k < 0 && errno != EINTR && errno != EAGAIN) return put > 0 ? put : -1;
    if (k > 0) put += k;
    if (k < 0) sys::poll(&room, 1, -1);
  }
  return got;
}

ssize_t splice_in(int from, int to, Socket& target, char* buffer, std::size_t n, unsigned flags) {
  if (is_nonblocking(to, target) && (readiness(to, target, false) & POLLOUT) == 0) {
    target.full.fetch_add(1, std::memory_order_relaxed);  // relaxed: a count; room is an edge now
    return fail(EAGAIN);
  }
  pollfd there{from, POLLIN, 0};
  if (poll_pipe(&there, flags) < 0) return -1;
  const ssize_t got = sys::call(SYS_read, from, buffer, std::min(n, kPiece));
  if (got <= 0) return got;
  for (ssize_t put = 0; put < got;) {
    const iovec io{buffer + put, static_cast<std::size_t>(got - put)};
    const ssize_t k = shared_send(to, target, &io, 1, 0);
    if (k > 0) {
      put += k;
    } else if (k < 0 && errno == EAGAIN) {
      pollfd p{to, 0, 0};
      sys::poll(&p, 1, 1);  // the bytes have left the kernel pipe and cannot go back
    } else if (k < 0 && errno != EINTR) {
      return put > 0 ? put : -1;
    }
  }
  return got;
}

}  // namespace

CLAN_INTERPOSED(ssize_t, sendfile, (int to, int from, off_t* offset, size_t n),
                (to, from, offset, n)) {
  // Into a kernel pipe it can read from a socket, as splice() does.
  if (const SocketRef source = acquire(from); source && goes_into_pipe(to))
    never_move(from, *source, clan::reasons::Why::kSpliced);
  return sending(
      to, 0, [&] { return real().sendfile(to, from, offset, n); },
      [&](Socket& s) { return send_file(to, s, from, offset, n); });
}

CLAN_INTERPOSE ssize_t sendfile64(int to, int from, off_t* offset, size_t n) {
  return sendfile(to, from, offset, n);
}

CLAN_INTERPOSED(ssize_t, splice,
                (int from, off64_t* from_offset, int to, off64_t* to_offset, size_t n,
                 unsigned flags),
                (from, from_offset, to, to_offset, n, flags)) {
  constexpr unsigned kKnown = SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT;
  if (n == 0 || (flags & ~kKnown) != 0)  // nothing is moved
    return real().splice(from, from_offset, to, to_offset, n, flags);
  SocketRef source = acquire(from), target = acquire(to);
  // Splicing takes the bytes past the library.
  if (source && !source->shared()) (void)keep_on_tcp(from, *source, clan::reasons::Why::kSpliced);
  if (target && !target->shared()) (void)keep_on_tcp(to, *target, clan::reasons::Why::kSpliced);
  const bool out = source && source->shared(), in = target && target->shared();
  if (!out && !in) return real().splice(from, from_offset, to, to_offset, n, flags);
  // one is a socket, and so the other is a pipe
  if (!is_pipe(out ? to : from)) return -1;
  if (from_offset != nullptr || to_offset != nullptr) return fail(ESPIPE);
  const Scratch scratch(kPiece);
  if (!scratch) return fail(ENOMEM);
  char* buffer = scratch.as<char>();
  if (source && source->shared()) return splice_out(from, *source, to, buffer, n, flags);
  if (target && target->shared()) return splice_in(from, to, *target, buffer, n, flags);
  return real().splice(from, from_offset, to, to_offset, n, flags);  // it has gone back since
}
