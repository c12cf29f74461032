// The end of a moved connection: what the kernel reports of it, and what calls return.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "clan/detail/clock.h"
#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"
#include "state/face.h"
#include "state/socket.h"
#include "table/buffers.h"

namespace clan::preload {

/// Notes the end of TCP, even if bytes before it are unread.
void look_for_end(int fd, Socket& s);

/// Does what is due and checks TCP, after the kernel called the descriptor ready.
void poll_tcp_socket(int fd, Socket& s);
/// Checks TCP only: what is_due() may wait (stream/readiness.h).
void look_at_tcp(int fd, Socket& s);

/// Whether the pipe's front and TCP's bytes before it are as many as SO_RCVLOWAT asks for, or all
/// that can come: like the kernel, a full window wakes a reader.
bool enough_bytes(const Socket& s, std::size_t of_tcp = 0);

/// Whether readiness() would at most report POLLOUT. False: ask it.
inline bool is_idle_fast(const Socket& s) {
  const bool plain = s.has_drained() && !s.kernel_end && !s.kernel_error &&
                     !s.shut_read.load(std::memory_order_relaxed) &&
                     !s.back_in.load(std::memory_order_relaxed);
  constexpr std::uint64_t kDemotes = socket_face::kLeaving | socket_face::kGone;
  return plain && s.pipe.seems_empty() && (state_of(s.theirs()) & kDemotes) == 0;
}

/// Whether the peer's end is in the pipe.
inline bool has_ended(const Socket& s) {
  // relaxed: a hint; the record says
  return s.pipe.page().ends[1 - s.pipe.end()].sender.ended.load(std::memory_order_relaxed) == 1;
}

/// Whether shutdown() has returned and the peer does not know yet.
inline bool owes_end(const Socket& s) { return (state_of(s.mine()) & socket_face::kEnding) != 0; }

/// Whether this end sends no more.
inline bool is_ended_here(const Socket& s) {
  // relaxed: a hint; the record says
  return s.pipe.page().ends[s.pipe.end()].sender.ended.load(std::memory_order_relaxed) == 1 ||
         owes_end(s);
}

/// Returns the reset that TCP would report: ECONNRESET, EPIPE after the peer's end, or the error
/// with which the kernel aborted the connection. 0: it lives, or ends in good order.
int reset_of(const Socket& s);
/// Returns the same to its first caller, then 0.
int tell_reset(Socket& s);

/// Returns the state that TCP would have, as BPF_TCP_CLOSE. The kernel's ignores ends in the pipe.
int tcp_state(int fd, Socket& s);

/// Does getpeername(): fails once tcp_state() is closed.
int name_of_peer(int fd, Socket& s, sockaddr* address, socklen_t* size);

/// Returns what recv does when TCP has ended and the pipe is empty.
ssize_t ended(Socket& s);

// Sets errno if the pipe could not do the call.
inline bool failed(const Pipe::Done& done) {
  if (done.err == 0) return false;
  errno = done.err == EPROTO ? ECONNRESET : done.err == EFAULT ? EFAULT : EAGAIN;
  return true;
}

/// Fails a send that nobody will read, with SIGPIPE unless `flags` has MSG_NOSIGNAL.
ssize_t broken_pipe(int flags);

/// Returns SO_ERROR, once.
int take_error(int fd, Socket& s);

/// Adds the pipe's bytes to the kernel's TCP_INFO, if the connection has moved.
void show_pipe_in_tcp_info(int fd, Socket& s, void* value, socklen_t size);

/// how often a busy sender asks whether the peer is alive
constexpr std::uint64_t kCheckNs = 100'000;

/// Notes that the kernel was asked whether the peer lives: a thread is about to ask, or slept on
/// the socket and something else woke it.
inline void note_checked(Socket& s, std::uint64_t now_ns = monotonic_ns()) {
  s.checked_ns.store(now_ns, std::memory_order_relaxed);  // relaxed: a number alone
}

/// Whether it is time to ask whether the peer lives, and notes that. Mostly reads no clock.
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
