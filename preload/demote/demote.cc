#include "demote/demote.h"

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "attach/attach.h"
#include "clan/detail/clock.h"
#include "clan/detail/log.h"
#include "clan/detail/words.h"
#include "clan/face/pipe.h"
#include "clan/face/reasons.h"
#include "clan/face/socket_face.h"
#include "demote/demote_on_request.h"
#include "demote/demote_steps.h"
#include "demote/resend.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/hooks.h"
#include "state/named.h"
#include "state/remote.h"
#include "state/socket.h"
#include "state/withdraw.h"
#include "table/fd_table.h"
#include "table/internal_fds.h"
#include "table/open_file.h"
#include "tcp/aborted.h"
#include "tcp/ring.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

using socket_face::kGiven;
using socket_face::kGivenBack;
using socket_face::kGone;
using socket_face::kLeaving;
using socket_face::kReadsOn;
using socket_face::kResends;
using socket_face::kSending;
using socket_face::kState;

/// Which program reads from now on, and what it knows.
enum class Reader { kThis, kTcpAlone, kThisIfClosed };

// Behind kLeaving: a peer that closes sees that, or is seen here.
bool closed_with_bytes(int fd, const Socket& s) {
  return s.pipe.front() == PipeFront::kBytes &&
         ((state_of(s.theirs()) & socket_face::kClosed) != 0 || closed(fd));
}

// What lies in the pipe is the other end's to send again. False: not for now.
bool give_back(Socket& s) {
  auto& word = s.mine().words[kGivenBack];
  if (word.load(std::memory_order_relaxed) != 0) return true;  // relaxed: this end's
  if (const int err = s.pipe.set_aside(); err != 0 && err != EALREADY) return false;
  words::store_release(word, kGiven);  // PAIR face.given: behind what has been read
  return true;
}

// The other end may be this process's, and the thread that would answer for it wait here. Calls
// `what` with that end.
void for_other_end_here(Socket& s, void (*what)(int fd, Socket& other)) {
  struct Search {
    const Socket& s;
    void (*what)(int fd, Socket& other);
  } search{s, what};
  for_each_socket(
      [](int fd, Socket& other, void* argument) {
        const Search& of = *static_cast<Search*>(argument);
        // relaxed: what a peer writes there names at most another socket
        const auto cookie = [](const PipePage::Face& face) {
          return face.words[socket_face::kCookie].load(std::memory_order_relaxed);
        };
        if (&other != &of.s && other.shared() && cookie(other.mine()) == cookie(of.s.theirs()) &&
            cookie(other.theirs()) == cookie(of.s.mine()))
          of.what(fd, other);
      },
      &search);
}

// Until both directions are clean for a program that knows TCP alone: what the other end has sent
// by TCP lies there, and what it has put into the pipe behind that it sends again. `if_closed`:
// this program reads in the pipe what a peer that has closed has left there.
void wait_until_clean(int fd, Socket& s, bool if_closed) {
  const std::uint64_t until = monotonic_ns() + kForOtherEndNs;
  std::uint64_t before = kReadsOn;  // not any more, if the other end has not acted on it yet
  // PAIR face.given: taken back
  words::cas(s.mine().words[kGivenBack], before, 0);
  bool waits = true, given = false;
  const char* broken = nullptr;
  for_other_end_here(s, [](int, Socket& other) {
    if (give_back(other)) add_state(other.mine(), kLeaving);
  });
  for (; broken == nullptr; nap()) {
    const bool gone = go_now(fd, s);
    const std::uint64_t theirs = state_of(s.theirs());
    if (if_closed && !given && closed_with_bytes(fd, s)) return;
    if ((theirs & kSending) == 0) {
      set_gone(s.theirs());  // it has not switched, and will not any more
      waits = false;
    } else if ((theirs & kGone) == 0) {
      // Nothing is to come but what the other end may put there now. It sees then that this end has
      // left, goes back, and sends that again.
      const bool silent = s.pipe.front() == PipeFront::kNothing;
      if (!given && (given = give_back(s))) {
        waits = !silent;
        for_other_end_here(s, [](int other_fd, Socket& other) {
          if (is_to_go(other)) (void)answer_leaving(other_fd, other);
        });
      }
    } else {
      waits = false;
      if ((theirs & kResends) == 0 && s.pipe.front() == PipeFront::kBytes)
        broken = "its peer has gone back to TCP and cannot send again what was not read before";
    }
    if (gone && !waits) break;
    if (closed(fd)) {  // nobody sends again what is in the pipe
      if (s.pipe.front() == PipeFront::kBytes) {
        CLAN_WARN("%s: its peer has closed; bytes that were not read cannot go back to TCP",
                  Named(fd, s).text());
      }
      break;
    }
    if (monotonic_ns() >= until) broken = "its peer has not let it go back to TCP";
  }
  if (broken != nullptr) break_off(fd, s, broken);
  set_gone(s.mine());
  read_kernel(fd, s);
}

// The other host has no part in it any more. What it sent and nobody has read lies in the pipe, and
// cannot go back.
void reset_unless_clean(int fd, Socket& s) {
  constexpr std::uint64_t kLastBytesNs = 1'000'000'000;  // of TCP, which may be on their way
  for (const std::uint64_t until = monotonic_ns() + kLastBytesNs; !came_back(fd, s); nap()) {
    const bool unread = !s.has_drained() || s.pipe.front() == PipeFront::kBytes;
    if (!unread && !closed(fd) && monotonic_ns() < until) continue;
    if (closed(fd) && !unread) break;
    break_off(fd, s, "bytes from another host that were not read cannot go back to TCP");
    break;
  }
  read_kernel(fd, s);
}

// Under s.moving. False: no end has come into the pipe; one that comes now sees that we have gone.
bool say_leaving(int fd, Socket& s, bool reads_on) {
  // A thread of the other end that sends just now rings, and notices that this end leaves.
  (void)s.pipe.want_data();
  // PAIR face.given: first, as this process may be stopped behind each of these
  if (std::uint64_t none = 0; reads_on) words::cas(s.mine().words[kGivenBack], none, kReadsOn);
  s.mine().words[kState].fetch_or(kLeaving, std::memory_order_seq_cst);  // PAIR face.state
  // The other host may have heard that we are in the pipe, and have switched: it is asked.
  if (!is_remote(s) && (state_of(s.theirs()) & socket_face::kAttached) == 0) {
    set_gone(s.mine());
    read_kernel(fd, s);
    settle(s);
    return false;
  }
  if (!is_remote(s)) (void)ring_bell(s);
  if (reads_on && (state_of(s.mine()) & kGone) == 0 && !go_or_later(fd, s)) hooks.going_back(s);
  return true;
}

void leave(int fd, Socket& s, Reader reader, reasons::Why why) {
  const bool to_others = reader != Reader::kThis;
  const DeferSignals undisturbed;
  KeepErrno keep;
  s.open_file().pin();
  say_why(fd, s, why);
  s.moving.lock();
  if (s.shared()) {
    CLAN_DEBUG("fd %d goes back to TCP", fd);
    const bool remote = is_remote(s);
    const bool leaves = say_leaving(fd, s, remote || !to_others);
    if (remote) leave_other_host(fd, s);
    if (leaves && to_others)
      remote ? reset_unless_clean(fd, s) : wait_until_clean(fd, s, reader == Reader::kThisIfClosed);
    settle(s);
  }
  s.moving.unlock();
  // Nothing may overtake that.
  for (const std::uint64_t until = monotonic_ns() + kForOtherEndNs;
       to_others && resends(fd, s); nap()) {
    if (monotonic_ns() < until) continue;
    break_off(fd, s, "its peer has not read what is to be sent before it can go back to TCP");
    break;
  }
  tell_sets(s);
}

}  // namespace

bool leave_alone(int fd, Socket& s) {
  const DeferSignals undisturbed;
  if (is_remote(s) || (state_of(s.theirs()) & socket_face::kAttached) != 0 ||
      !s.moving.try_lock()) {
    return false;
  }
  KeepErrno keep;
  s.open_file().pin();
  say_why(fd, s, reasons::Why::kNoPeer);
  (void)say_leaving(fd, s, true);
  if (!s.shared() && s.pipe.memfd() >= 0) close_descriptor(s);
  s.moving.unlock();
  return s.reads_kernel();
}

void give_up_on_peer(int fd, Socket& s) {
  if ((state_of(s.theirs()) & socket_face::kAttached) == 0 && has_waited_for_peer(s))
    (void)leave_alone(fd, s);
}

void leave_pipe(int fd, bool to_others, reasons::Why why) {
  if (SocketRef s = acquire(fd)) leave(fd, *s, to_others ? Reader::kTcpAlone : Reader::kThis, why);
}

bool leave_without_bells(int fd, Socket& s) {
  const DeferSignals undisturbed;
  const KeepErrno keep;
  // The other end may have left, and sleep until this one rings.
  if (s.shared() && is_to_go(s)) (void)answer_leaving(fd, s);
  // Once this end has said that it leaves, the other one's threads do not sleep for long.
  if ((state_of(s.mine()) & (kLeaving | kGone)) != 0) return true;
  if (!s.moving.try_lock()) return false;
  s.open_file().pin();
  say_why(fd, s, reasons::Why::kNoDescriptors);
  if (s.shared()) {
    (void)say_leaving(fd, s, true);
    settle(s);
  }
  s.moving.unlock();
  tell_sets(s);
  return true;
}

void leave_all_remote() {
  if (!remote_is_loaded()) return;
  for_each_socket(
      [](int fd, Socket& s, void*) {
        if (is_remote(s) && !keep_on_tcp(fd, s, reasons::Why::kForked))
          leave(fd, s, Reader::kThis, reasons::Why::kForked);
      },
      nullptr);
}

void never_move(int fd, Socket& s, reasons::Why why) {
  if (!keep_on_tcp(fd, s, why)) leave_pipe(fd, true, why);
}

void leave_for_kernel(int fd, Socket& s, reasons::Why why) {
  if (!keep_on_tcp(fd, s, why)) leave(fd, s, Reader::kThisIfClosed, why);
}

void leave_all_pipes(reasons::Why why) {
  KeepErrno keep;
  for_each_socket(
      [](int fd, Socket& s, void* because) {
        leave_pipe(fd, true, *static_cast<const reasons::Why*>(because));
        if (s.shared()) return;  // back already, or resets; what it reads is the kernel's
        s.become(Socket::State::kKernel);
        withdraw_offer(s);
      },
      &why);
}

void take_back_moved(reasons::Why why) {
  for_each_socket(
      [](int fd, Socket& s, void* because) {
        if (s.shared() && (state_of(s.mine()) & (kLeaving | kGone)) == 0)
          leave(fd, s, Reader::kThis, *static_cast<const reasons::Why*>(because));
      },
      &why);
}

}  // namespace clan::preload
