#include "stream/receive.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "clan/pipe.h"
#include "clan/socket_face.h"
#include "clan/wait.h"
#include "migrate/answer.h"
#include "migrate/demote.h"
#include "migrate/demote_end.h"
#include "os/real.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/fd_table.h"
#include "state/socket.h"
#include "stream/blocking.h"
#include "stream/doorbell.h"
#include "stream/ending.h"
#include "stream/gate_wait.h"
#include "stream/held_up.h"
#include "stream/io_part.h"
#include "stream/memory.h"
#include "stream/poll_tcp.h"
#include "stream/ring.h"
#include "stream/sleeper.h"
#include "stream/tcp_prefix.h"

namespace clan::preload {
namespace {

using socket_face::kGone;
using socket_face::kSending;

// Reads what TCP still has. >0 bytes, 0: go on with the pipe, -1 with errno (EAGAIN: nothing yet;
// EBUSY: nor can it be told what). `all`: those were the last of TCP's.
ssize_t receive_from_tcp(int fd, Socket& s, const iovec* buffers, int count, int flags, bool* all) {
  const Draining draining(fd, s);
  if (!draining) {
    errno = EBUSY;
    return -1;
  }
  if (s.has_drained()) return 0;
  std::size_t certain = 0;
  const ssize_t left = left_in_tcp(fd, s, &certain);
  if (left <= 0) return left;
  int at_mark = 0;
  if (certain == 0 && (state_of(s.theirs()) & kSending) == 0 &&
      sys::ioctl(fd, SIOCATMARK, &at_mark) == 0 && at_mark != 0) {
    certain = ~std::size_t{
        0};  // FIONREAD counts up to the mark, and nobody sends urgent data but by TCP alone
  }
  if (certain == 0) {
    look_for_end(fd, s);
    // Closed before it ever switched, or after: look in the pipe as well.
    if (s.kernel_end || s.kernel_error) return 0;
    errno = EAGAIN;
    return -1;
  }
  Part part(buffers, count, 0, certain);
  msghdr message = message_of(part.buffers, part.count);
  const ssize_t n = sys::call(SYS_recvmsg, fd, &message,
                              (flags & MSG_PEEK) | discarding(buffers, count) | MSG_DONTWAIT);
  *all = n == left && (state_of(s.theirs()) & kSending) != 0;
  return n;
}

// `rings`: the other end is to be told.
Pipe::Done receive_by_pipe(Socket& s, const iovec* buffers, int count, bool peek, bool* rings) {
  if (!s.inherited.load(std::memory_order_relaxed)) {  // relaxed: of this process
    const Pipe::Done done = s.pipe.receive(buffers, count, peek);
    *rings = done.must_ring;
    return done;
  }
  const Pipe::Done done = others_hold(s) ? s.pipe.receive_shared(buffers, count, peek)
                                         : s.pipe.receive(buffers, count, peek);
  *rings = must_ring(s, done);
  return done;
}

// The descriptor was closed under the call: the kernel would give to it what it began to wait for
// before.
ssize_t receive_after_close(Socket& s, const iovec* buffers, int count, bool peek) {
  bool rings = false;
  const Pipe::Done last = receive_by_pipe(s, buffers, count, peek, &rings);
  const int other = rings ? descriptor_of(s) : -1;
  if (other >= 0) ring_doorbell(other, s);
  errno = EBADF;
  return last.bytes > 0 ? static_cast<ssize_t>(last.bytes) : -1;
}

}  // namespace

ssize_t shared_receive(int fd, Socket& s, const iovec* buffers, int count, int flags) {
  const Undisturbed undisturbed;
  SinceEntry since;
  const std::size_t wanted = total(buffers, count);
  const bool peek = (flags & MSG_PEEK) != 0;
  // How many make a blocking call return.
  const std::size_t target =
      (flags & MSG_WAITALL) != 0
          ? wanted
          : std::min(wanted, static_cast<std::size_t>(s.low_water.load(std::memory_order_relaxed)));
  std::size_t got = 0;
  std::uint64_t deadline = 0;  ///< of SO_RCVTIMEO, from the first sleep on, for the call as a whole
  auto until = [&] { return deadline != 0 ? deadline : deadline = deadline_of(fd, SO_RCVTIMEO); };
  // Another process keeps us from the bytes: the answer for now, if it is not to be waited for.
  auto held_up = [&]() -> std::optional<ssize_t> {
    const bool waits =
        (flags & MSG_DONTWAIT) == 0 && !is_nonblocking(fd, s) && (got == 0 || got < target);
    if (!waits) note_held_up(s);
    if (waits && nap_in_call(fd, s, got, until(), since)) return std::nullopt;
    if (!waits) errno = EAGAIN;
    return got > 0 ? static_cast<ssize_t>(got) : -1;
  };
  for (;;) {
    if (peek) got = 0;  // all of it again
    // One that has gone and never sent through the pipe.
    if (reads_tcp(s) && (state_of(s.theirs()) & (kGone | kSending)) == kGone)
      (void)came_back(fd, s);
    bool tcp_is_peeked = false;
    if (s.reads_kernel()) {
      tell_sets(s);
      Part part(buffers, count, got);
      msghdr message = got > 0 ? message_of(part.buffers, part.count) : message_of(buffers, count);
      // the kernel would start it anew
      const bool timed = deadline != 0 && deadline != kNoDeadline;
      const int more =
          discarding(buffers, count) | (timed || (got >= target && got > 0) ? MSG_DONTWAIT : 0);
      const Disturbed here;
      const ssize_t n = real().recvmsg(fd, &message, flags | more);
      if (!timed || peek || (n < 0 && errno != EAGAIN) || got + std::max<ssize_t>(n, 0) >= target) {
        return got > 0 ? static_cast<ssize_t>(got) + std::max<ssize_t>(n, 0) : n;
      }
      if (n == 0) return static_cast<ssize_t>(got);
      if (n > 0) {
        got += static_cast<std::size_t>(n);
      } else if (sleep_for_bytes(fd, s, true, deadline, since) < 0) {
        return got > 0 ? static_cast<ssize_t>(got) : -1;
      }
      continue;
    }
    if (!s.has_drained()) {
      Part part(buffers, count, got);
      const ssize_t n = receive_from_tcp(fd, s, part.buffers, part.count, flags, &tcp_is_peeked);
      if (n > 0) {
        got += static_cast<std::size_t>(n);
        give_up_on_peer(fd, s);
        if (got == wanted || (peek && !tcp_is_peeked && got >= target))
          return static_cast<ssize_t>(got);
        if (!peek) continue;  // what lies behind it in the pipe belongs to the same answer
      }
      if (s.reads_kernel()) continue;
      if (n < 0 && errno == EBUSY) {
        if (const auto answer = held_up()) return *answer;
        continue;
      }
      if (n < 0 && errno != EAGAIN) return got > 0 ? static_cast<ssize_t>(got) : -1;
    }
    if (s.has_drained() || tcp_is_peeked || s.kernel_end || s.kernel_error) {
      if (s.kernel_end || s.kernel_error) [[unlikely]]
        s.pipe.writer_has_gone();
      Pipe::Done done;
      bool rings = false;
      if (got == 0) {
        done = receive_by_pipe(s, buffers, count, peek, &rings);
      } else {
        Part part(buffers, count, got);
        done = receive_by_pipe(s, part.buffers, part.count, peek, &rings);
      }
      if (rings) ring_doorbell(fd, s);
      if (s.pipe.is_large()) [[unlikely]]
        owe_memory(fd, s, s.pipe.seems_empty());
      got += done.bytes;
      if (done.err == EBUSY) {
        if (const auto answer = held_up()) return *answer;
        continue;
      }
      if (failed(done)) return got > 0 ? static_cast<ssize_t>(got) : -1;
      if (got > 0 && got >= target) {
        // The rest may be TCP's again, and belongs to the same answer.
        if (got == wanted || peek || (state_of(s.theirs()) & kGone) == 0 || !came_back(fd, s)) {
          return static_cast<ssize_t>(got);
        }
        continue;
      }
      if (wanted == 0 && s.pipe.front() == PipeFront::kBytes) return 0;
    }
    if (s.shut_read.load(std::memory_order_relaxed)) return static_cast<ssize_t>(got);
    if (got > 0 && got >= target) return static_cast<ssize_t>(got);
    if (peek && got > 0) {
      // Fewer than it wants to see: nothing that the kernel could wait for, as some lie there
      // already.
      const bool over = s.kernel_end || s.kernel_error || s.pipe.front() == PipeFront::kBroken;
      const Disturbed here;
      if (over || since.handled() || (flags & MSG_DONTWAIT) != 0 || is_nonblocking(fd, s) ||
          time_left_ms(until(), -1) == 0 || real().poll(nullptr, 0, 1) < 0) {
        return static_cast<ssize_t>(got);
      }
      look_at_kernel(fd, s);
      continue;
    }
    bool leaves = false;
    switch (s.pipe.front()) {
      case PipeFront::kBytes:
        if (s.has_drained() && wanted > 0) continue;
        break;  // TCP's come first, and are on their way
      case PipeFront::kEnd:
        if (s.has_drained()) return static_cast<ssize_t>(got);
        break;
      case PipeFront::kLeave:
        leaves = true;
        look_at_kernel(fd, s);
        if (came_back(fd, s)) continue;
        break;
      case PipeFront::kBroken:
        if (got > 0) return static_cast<ssize_t>(got);
        errno = ECONNRESET;
        return -1;
      default: break;
    }
    if (s.kernel_end || s.kernel_error) {
      if (s.pipe.front() == PipeFront::kBytes) continue;  // written before it went
      return got > 0 ? static_cast<ssize_t>(got) : ended(s);
    }
    if ((flags & MSG_DONTWAIT) != 0 || is_nonblocking(fd, s)) {
      if (got > 0) return static_cast<ssize_t>(got);
      if (check_due(s)) {
        look_at_kernel(fd, s);
        if (s.kernel_end || s.kernel_error) continue;
        if (!leaves && s.pipe.front() != PipeFront::kNothing) continue;
      }
      errno = EAGAIN;
      return -1;
    }
    // Wait: spin as long as it pays, then sleep in the kernel.
    int woken = 0;
    auto sleep = [&] {
      const Undisturbed again;
      if (doorbells_waiting(s)) take_doorbells(fd, s);  // that may_lie()
      {
        Sleeper sleeper(s, true, false);
        if (!s.pipe.want_data() && !reads_tcp(s) && !leaves) return false;
        woken = sleep_for_bytes(fd, s, got > 0, until(), since);
        s.pipe.fetch_ahead();
      }
      if (woken == kFetched) return !s.pipe.seems_empty();
      if (woken > 0 && may_lie(s)) return true;
      if (woken >= 0) woken > 0 ? take_doorbells(fd, s) : look_at_kernel(fd, s);
      return true;
    };
    wait_for(
        leaves || reads_tcp(s) ? nullptr : &s.receive_wait, s, since, awaited_of(s),
        [&] { return !s.pipe.seems_empty(); }, sleep);
    if (woken < 0) {
      if (got > 0 || errno != EBADF || reads_tcp(s)) {
        return got > 0 ? static_cast<ssize_t>(got) : -1;
      }
      return receive_after_close(s, buffers, count, peek);
    }
  }
}

}  // namespace clan::preload
