#include "stream/send.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "clan/log.h"
#include "clan/pipe.h"
#include "clan/socket_face.h"
#include "clan/wait.h"
#include "migrate/demote.h"
#include "migrate/resend.h"
#include "os/real.h"
#include "os/signals.h"
#include "os/sys.h"
#include "os/tcp.h"
#include "state/face.h"
#include "state/open_file.h"
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
using socket_face::kLeaving;
using socket_face::kSending;

constexpr int kOfTcpAlone = MSG_OOB | MSG_ZEROCOPY;  ///< what goes when this end is back there
constexpr int kLongestNapMs = 16;                    ///< of a send that cannot be told of room

// Of an end whose last record says that it leaves: somebody is at it, with the sends closed, or
// does it in its place; or it has gone. False: it is a lie, or was left so by a process that was
// killed, and the connection is reset.
bool is_left_rightly(int fd, Socket& s) {
  // PAIR preload.gate: who opens it has gone before
  const bool at_it = (s.open_file().sends.load(std::memory_order_acquire) & Slot::kClosed) != 0;
  if (at_it || (state_of(s.mine()) & kGone) != 0 || (state_of(s.theirs()) & kLeaving) != 0)
    return true;
  CLAN_WARN("fd %d: its pipe says what cannot be; the connection is reset", fd);
  reset_connection(fd);
  s.kernel_error.set();
  return false;
}

Pipe::Done send_by_pipe(int fd, Socket& s, const iovec* buffers, int count, PipeRoom room) {
  if (!s.inherited.load(std::memory_order_relaxed))  // relaxed: of this process
    return s.pipe.send(buffers, count, room);
  const Announced announced(fd, s);
  return others_hold(s) ? s.pipe.send_shared(buffers, count, room)
                        : s.pipe.send(buffers, count, room);
}

}  // namespace

ssize_t shared_send(int fd, Socket& s, const iovec* buffers, int count, int flags) {
  if (s.rang.load(std::memory_order_relaxed)) s.pipe.fetch_ahead();  // it seldom sends
  const Undisturbed undisturbed;
  SinceEntry since;
  const std::size_t wanted = total(buffers, count);
  const bool may_wait = (flags & MSG_DONTWAIT) == 0;
  // A send that may wait for a reader that reads need not fill all that TCP would take.
  PipeRoom room = PipeRoom::kWindow;
  std::size_t sent = 0;
  int nap_ms = 1;
  std::uint64_t deadline = 0;  ///< of SO_SNDTIMEO, from the first sleep on
  UntilOpen until(fd, s);
  // Another process keeps us from the room. True: after a moment again. False, with errno: the call
  // is over.
  auto held_up = [&] {
    if (may_wait && !is_nonblocking(fd, s)) {
      if (deadline == 0) deadline = deadline_of(fd, SO_SNDTIMEO);
      return nap_in_call(fd, s, sent, deadline, since);
    }
    note_held_up(s);
    errno = EAGAIN;
    return false;
  };
  for (;;) {
    const auto& sender = s.pipe.page().ends[s.pipe.end()].sender;
    const std::uint64_t own = state_of(s.mine());
    const bool gone = (own & kGone) != 0;
    if ((own & socket_face::kEnding) != 0)
      return sent > 0 ? static_cast<ssize_t>(sent) : broken_pipe(flags);
    if (gone && sent > 0) return static_cast<ssize_t>(sent);
    if ((flags & kOfTcpAlone) != 0 && !gone) {
      look_at_kernel(fd, s);
      if ((state_of(s.mine()) & kGone) != 0 || held_up()) continue;
      return -1;
    }
    if (gone && resends(fd, s)) {
      if (held_up()) continue;
      return -1;
    }
    // Left unread, they would make our death a reset, which drops what we have sent by TCP.
    if (gone && doorbells_waiting(s)) look_at_kernel(fd, s);
    if (gone || !switch_sending(fd, s)) {
      // Still by TCP, or again. The counter keeps the switch from happening under us.
      Slot& slot = s.open_file();
      const bool waits = may_wait && !is_nonblocking(fd, s);
      bool shut = false;
      {
        const Slot::UnderWay counted(slot.sends);
        if (!counted) {
          if (until.wait(slot.sends)) continue;
          shut = true;
        } else {
          UntilOpen::found_open(s, s.sends_wait);
          if (gone) {
            const msghdr message = message_of(buffers, count);
            const Disturbed here;
            return real().sendmsg(fd, &message, flags);
          }
          if ((state_of(s.mine()) & kSending) != 0) continue;
          Part part(buffers, count, sent);
          const msghdr message = message_of(part.buffers, part.count);
          const long n = sys::call(SYS_sendmsg, fd, &message,
                                   flags | MSG_DONTWAIT | (sent > 0 ? MSG_NOSIGNAL : 0));
          // Room in TCP, or in the pipe if we have moved by then, is an edge after this.
          if (n < static_cast<long>(wanted - sent)) s.full.fetch_add(1, std::memory_order_relaxed);
          if (n < 0 && (errno != EAGAIN || !waits))
            return sent > 0 ? static_cast<ssize_t>(sent) : -1;
          if (n > 0) {
            sent += static_cast<std::size_t>(n);
            give_up_on_peer(fd, s);
          }
          if (sent == wanted || !waits) return static_cast<ssize_t>(sent);
        }
      }
      if (shut) {
        if (held_up()) continue;
        return sent > 0 ? static_cast<ssize_t>(sent) : -1;
      }
      // Not in the kernel's send: who reads here meanwhile may have to ring for room, and for that
      // to switch; the peer may read nothing until then.
      if (deadline == 0) deadline = deadline_of(fd, SO_SNDTIMEO);
      const int timeout = time_left_ms(deadline, kLongestNapMs);
      if (timeout == 0) {
        if (sent > 0) return static_cast<ssize_t>(sent);
        errno = EAGAIN;
        return -1;
      }
      pollfd p{fd, POLLOUT, 0};
      if (sleep_in_send(&p, timeout, since) < 0 && !goes_on(sent, deadline, since)) {
        return sent > 0 ? static_cast<ssize_t>(sent) : -1;
      }
      continue;
    }
    if (sender.ended.load(std::memory_order_relaxed) == 1) {
      return sent > 0 ? static_cast<ssize_t>(sent) : broken_pipe(flags);
    }
    if (((own | state_of(s.theirs())) & kLeaving) != 0) {
      look_at_kernel(fd, s);
    } else if (!s.rang.load(std::memory_order_relaxed) &&
               check_due(s)) {  // else the doorbell tells
      // Only asks: a doorbell read here is one that another thread, asleep for bytes, does not see
      // any more.
      KeepErrno keep;
      pollfd p{fd, POLLRDHUP, 0};
      if (sys::poll(&p, 1, 0) > 0 && p.revents != 0) look_at_kernel(fd, s);
    }
    if (s.kernel_end || s.kernel_error) {
      if (sent > 0) return static_cast<ssize_t>(sent);
      if (was_reset(s)) {
        if (!s.reset_told.set_first()) return broken_pipe(flags);
        errno = ECONNRESET;
        return -1;
      }
      // Nobody reads the pipe any more. The kernel knows what is to be said, and when.
      s.kernel_says.set();
      const msghdr message = message_of(buffers, count);
      const Disturbed here;
      return real().sendmsg(fd, &message, flags);
    }
    Pipe::Done done;
    if (sent == 0) {
      done = send_by_pipe(fd, s, buffers, count, room);
    } else {
      Part part(buffers, count, sent);
      done = send_by_pipe(fd, s, part.buffers, part.count, room);
    }
    if (done.err == EPIPE) {  // ended meanwhile, or on its way back to TCP
      const bool known =
          (state_of(s.mine()) & kGone) != 0 || sender.ended.load(std::memory_order_relaxed) == 1;
      if (known || !is_left_rightly(fd, s) || held_up()) continue;
      return sent > 0 ? static_cast<ssize_t>(sent) : -1;
    }
    if (done.err == EBUSY) {
      if (held_up()) continue;
      return sent > 0 ? static_cast<ssize_t>(sent) : -1;
    }
    const bool rings = must_ring(s, done);
    if (rings) {
      ring_doorbell(fd, s);
      if (s.kernel_error && sent == 0) continue;  // nobody is there who could read it
    }
    if (s.rang.load(std::memory_order_relaxed) != rings)
      s.rang.store(rings, std::memory_order_relaxed);
    if (s.pipe.is_large()) [[unlikely]]
      owe_memory(fd, s, false);
    sent += done.bytes;
    if (failed(done)) return sent > 0 ? static_cast<ssize_t>(sent) : -1;
    if (sent == wanted) return static_cast<ssize_t>(sent);
    const bool waits = may_wait && !is_nonblocking(fd, s);
    if (room == PipeRoom::kWindow && !waits) {
      room = PipeRoom::kWhole;
      continue;
    }
    if (done.bytes > 0) continue;
    s.full.fetch_add(1, std::memory_order_relaxed);
    if (!waits) {
      if (sent > 0) return static_cast<ssize_t>(sent);
      look_at_kernel(fd, s);
      if (s.kernel_end || s.kernel_error) continue;
      errno = EAGAIN;
      return -1;
    }
    bool over = false;
    auto sleep = [&] {
      const Undisturbed again;
      const bool naps = others_sleep(s);  // who may take the doorbell for our room with them
      // Whoever sleeps here for the peer's bytes needs the doorbells.
      const bool left_to_others = doorbells_waiting(s) && !look_at_kernel(fd, s);
      std::optional<Sleeper> sleeper(std::in_place, s, false, true);
      if (!s.pipe.want_room(room)) return false;
      s.mine().words[socket_face::kSleeps].fetch_add(1, std::memory_order_relaxed);
      // Room is announced by a doorbell too. Bytes of TCP that the application has not read yet
      // would make this return at once, so then only a short nap is taken.
      if (deadline == 0) deadline = deadline_of(fd, SO_SNDTIMEO);
      pollfd p{fd, POLLIN | POLLRDHUP, 0};
      int most = -1;
      if (reads_tcp(s) || s.kernel_end || naps || left_to_others || is_held_up(s)) {
        p.events = 0;
        most = nap_ms = std::min(nap_ms * 2, kLongestNapMs);
      }
      if (room == PipeRoom::kWindow) most = 1;
      if (most < 0 && waits_for_shared_reader(s)) most = kSharedReaderNs / 1'000'000;
      const int timeout = time_left_ms(deadline, most);
      if (timeout == 0) {
        errno = EAGAIN;
        over = true;
        return false;
      }
      const PacketSleep packets(is_carried(s), PacketSleep::May::kNotFetch);
      const int woken = sleep_in_send(&p, timeout, since);
      if (woken == 0) room = PipeRoom::kWhole;  // it does not read
      sleeper.reset();
      over = (woken < 0 && !goes_on(sent, deadline, since)) || !still_names(fd, s);
      if (!over) look_at_kernel(fd, s);
      return true;
    };
    wait_for(
        &s.send_wait, s, since, is_carried(s) ? Awaited{} : Awaited{s.pipe.peer_cpu()},
        [&] { return s.pipe.writable(room); }, sleep);
    if (over) return sent > 0 ? static_cast<ssize_t>(sent) : -1;
  }
}

}  // namespace clan::preload
