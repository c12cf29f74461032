// The end of a connection that has moved: what the kernel says of it, and what calls say of it.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "clan/detail/clock.h"
#include "clan/face/pipe.h"
#include "state/socket.h"
#include "table/buffers.h"

namespace clan::preload {

/// Notes the end of TCP, whatever is still to be read before it.
void look_for_end(int fd, Socket& s);

/// As what TCP would have ended: ECONNRESET or, behind the peer's end, EPIPE; what the kernel has
/// said if it has aborted the connection by itself. 0: it goes on, or ends in good order.
int reset_of(const Socket& s);
/// That, for the first caller; else 0.
int tell_reset(Socket& s);

/// The state that TCP would be in, as BPF_TCP_CLOSE and so on. The kernel's own knows nothing of
/// ends in the pipe.
int tcp_state(int fd, Socket& s);

/// The name of the peer that is connected, as of TCP.
int name_of_peer(int fd, Socket& s, sockaddr* address, socklen_t* size);

/// The peer's TCP is closed or reset and the pipe is empty: what recv says.
ssize_t ended(Socket& s);

// What the pipe has done is all; what it could not do is errno.
inline bool failed(const Pipe::Done& done) {
  if (done.err == 0) return false;
  errno = done.err == EPROTO ? ECONNRESET : done.err == EFAULT ? EFAULT : EAGAIN;
  return true;
}

/// What send says to an end that nobody reads. `flags`: MSG_NOSIGNAL.
ssize_t broken_pipe(int flags);

/// SO_ERROR, which is reported once.
int take_error(int fd, Socket& s);

/// Mends what the kernel has answered to TCP_INFO, if the connection has moved.
void show_pipe_in_tcp_info(int fd, Socket& s, void* value, socklen_t size);

/// how often a busy sender asks whether the peer is alive
constexpr std::uint64_t kCheckNs = 100'000;

/// Notes that the kernel has been asked at `now_ns` whether the peer is alive: a thread is about to
/// ask, or has slept on the socket and was woken by something else.
inline void note_checked(Socket& s, std::uint64_t now_ns = monotonic_ns()) {
  s.checked_ns.store(now_ns, std::memory_order_relaxed);  // relaxed: a number alone
}

/// Returns true if it is time to ask whether the peer is alive, and notes that. Mostly reads no
/// clock.
inline bool check_due(Socket& s) {
  constexpr std::uint64_t kUnits = 8192;  // of order_stamp(), fewer than kCheckNs takes
  const std::uint64_t stamp = order_stamp();
  // relaxed, all of it: numbers alone
  if (stamp - s.glanced.load(std::memory_order_relaxed) < kUnits) [[likely]]
    return false;
  s.glanced.store(stamp, std::memory_order_relaxed);
  const std::uint64_t now = monotonic_ns();
  if (now - s.checked_ns.load(std::memory_order_relaxed) < kCheckNs) return false;
  note_checked(s, now);
  share_memory_anew(now);
  return true;
}

}  // namespace clan::preload
