#include "demote/demote.h"

#include <cerrno>
#include <cstdint>
#include <utility>

#include "attach/attach.h"
#include "clan/detail/clock.h"
#include "clan/detail/log.h"
#include "clan/detail/words.h"
#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"
#include "demote/demote_on_request.h"
#include "demote/resend.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/hooks.h"
#include "state/named.h"
#include "state/remote.h"
#include "state/withdraw.h"
#include "table/fd_table.h"
#include "table/internal_fds.h"
#include "table/open_file.h"
#include "tcp/aborted.h"
#include "tcp/ring.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

using namespace socket_face;

/// The program that reads from now on, and whether it reads pipes.
enum class Reader { kThis, kTcpAlone, kThisIfClosed };

// After kLeaving: a peer that closes now sees it, or its close is seen here.
bool closed_with_bytes(int fd, const Socket& s) {
  return s.pipe.front() == PipeFront::kBytes &&
         ((state_of(s.theirs()) & kClosed) != 0 || closed(fd));
}

// Leaves the pipe's bytes to the peer to send again. False: not yet.
bool give_back(Socket& s) {
  auto& word = s.mine().words[kGivenBack];
  if (word.load(std::memory_order_relaxed) != 0) return true;  // relaxed: this end's
  if (const int err = s.pipe.set_aside(); err != 0 && err != EALREADY) return false;
  words::store_release(word, kGiven);  // PAIR face.given: behind what has been read
  return true;
}

// Calls `what(fd, other)` with the peer if it belongs to this process: its thread may be the one
// that waits here.
template <typename What>
void for_peer_here(const Socket& s, const What& what) {
  // relaxed: a hostile value at most names another socket
  const auto cookie = [](const PipePage::Face& face) {
    return face.words[kCookie].load(std::memory_order_relaxed);
  };
  for_each_socket([&](int fd, Socket& other) {
    if (&other != &s && other.shared() && cookie(other.mine()) == cookie(s.theirs()) &&
        cookie(other.theirs()) == cookie(s.mine()))
      what(fd, other);
  });
}

// Waits until TCP has both directions for a program that knows no pipes: the peer sends what is
// left in the pipe again. `if_closed`: returns if a peer that has closed left bytes in the pipe,
// for this program to read.
void wait_until_clean(int fd, Socket& s, bool if_closed) {
  const std::uint64_t until = monotonic_ns() + kForOtherEndNs;
  std::uint64_t before = kReadsOn;  // withdrawn if the peer has not acted on it yet
  // PAIR face.given: taken back
  words::cas(s.mine().words[kGivenBack], before, 0);
  bool waits = true, given = false, tried = false;
  const char* broken = nullptr;
  for_peer_here(s, [](int, Socket& peer) {
    if (give_back(peer)) add_state(peer.mine(), kLeaving);
  });
  for (; broken == nullptr; nap()) {
    const bool gone = go_now(fd, s);
    const std::uint64_t theirs = state_of(s.theirs());
    if (if_closed && !given && closed_with_bytes(fd, s)) return;
    const PipeFront front = s.pipe.front();
    const bool unread = front == PipeFront::kBytes || front == PipeFront::kEnd;
    const bool answers = (theirs & (kLeaving | kGone)) == kLeaving;  // it is in a call like this
    if ((theirs & kSending) == 0) {
      add_state(s.theirs(), kGone);  // it has not switched, and never will
      waits = false;
    } else if (unread && gone && (theirs & kResends) == 0 && !answers &&
               !std::exchange(tried, true) && do_their_part(fd, s)) {
      waits = false;
    } else if ((theirs & kGone) != 0) {
      waits = false;
      if ((theirs & kResends) == 0 && front == PipeFront::kBytes)
        broken = "its peer has gone back to TCP and cannot send again what was not read before";
    } else if (!given && (gone || answers) && (given = give_back(s))) {
      // Only what the peer may be writing now is to come if this end has read all. It then sees
      // that this end has left, goes back, and sends that again.
      waits = unread;
      for_peer_here(s, [](int peer_fd, Socket& peer) {
        if (is_to_go(peer)) (void)answer_leaving(peer_fd, peer);
      });
    }
    if (gone && !waits) break;
    if (closed(fd)) {  // nobody will send the pipe's bytes again
      if (s.pipe.front() == PipeFront::kBytes) {
        CLAN_WARN("%s: its peer has closed; bytes that were not read cannot go back to TCP",
                  Named(fd, s).text());
      }
      break;
    }
    if (monotonic_ns() >= until) broken = "its peer has not let it go back to TCP";
  }
  if (broken != nullptr) break_off(fd, s, broken);
  add_state(s.mine(), kGone);
  read_kernel(fd, s);
}

// The other host takes no part any longer: unread bytes in the pipe cannot go back.
void reset_unless_clean(int fd, Socket& s) {
  constexpr std::uint64_t kLastBytesNs = 1'000'000'000;  // for TCP bytes in flight
  for (const std::uint64_t until = monotonic_ns() + kLastBytesNs; !came_back(fd, s); nap()) {
    const bool unread = !s.has_drained() || s.pipe.front() == PipeFront::kBytes;
    if (!unread && !closed(fd) && monotonic_ns() < until) continue;
    if (closed(fd) && !unread) break;
    break_off(fd, s, "bytes from another host that were not read cannot go back to TCP");
    break;
  }
  read_kernel(fd, s);
}

// Under s.moving. False: the peer never entered the pipe; if it does now, it sees kGone.
bool say_leaving(int fd, Socket& s, bool reads_on) {
  // So that a peer that sends just now rings, and notices.
  (void)s.pipe.want_data();
  // PAIR face.given: first, as the process may be stopped after any of these
  if (std::uint64_t none = 0; reads_on) words::cas(s.mine().words[kGivenBack], none, kReadsOn);
  s.mine().words[kState].fetch_or(kLeaving, std::memory_order_seq_cst);  // PAIR face.state
  // The other host may think that we are in the pipe and have switched: it is asked.
  if (!is_remote(s) && (state_of(s.theirs()) & kAttached) == 0) {
    add_state(s.mine(), kGone);
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
  // Nothing may overtake what is sent again.
  for (const std::uint64_t until = monotonic_ns() + kForOtherEndNs; to_others && resends(fd, s);
       nap()) {
    if (monotonic_ns() < until) continue;
    break_off(fd, s, "its peer has not read what is to be sent before it can go back to TCP");
    break;
  }
  tell_sets(s);
}

}  // namespace

bool leave_alone(int fd, Socket& s) {
  const DeferSignals undisturbed;
  if (is_remote(s) || (state_of(s.theirs()) & kAttached) != 0 || !s.moving.try_lock()) {
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
  if ((state_of(s.theirs()) & kAttached) == 0 && has_waited_for_peer(s)) (void)leave_alone(fd, s);
}

void leave_pipe(int fd, bool to_others, reasons::Why why) {
  if (SocketRef s = acquire(fd)) leave(fd, *s, to_others ? Reader::kTcpAlone : Reader::kThis, why);
}

bool leave_without_bells(int fd, Socket& s) {
  const DeferSignals undisturbed;
  const KeepErrno keep;
  // The peer may have left, and sleep until this end rings.
  if (s.shared() && is_to_go(s)) (void)answer_leaving(fd, s);
  // Once this end has said that it leaves, the peer's threads sleep briefly.
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
  for_each_socket([](int fd, Socket& s) {
    if (is_remote(s) && !keep_on_tcp(fd, s, reasons::Why::kForked))
      leave(fd, s, Reader::kThis, reasons::Why::kForked);
  });
}

void never_move(int fd, Socket& s, reasons::Why why) {
  if (!keep_on_tcp(fd, s, why)) leave_pipe(fd, true, why);
}

void leave_for_kernel(int fd, Socket& s, reasons::Why why) {
  if (!keep_on_tcp(fd, s, why)) leave(fd, s, Reader::kThisIfClosed, why);
}

void leave_all_pipes(reasons::Why why) {
  KeepErrno keep;
  for_each_socket([why](int fd, Socket& s) {
    leave_pipe(fd, true, why);
    if (s.shared()) return;  // back already, or being reset; it reads the kernel
    s.become(Socket::State::kKernel);
    withdraw_offer(s);
  });
}

void take_back_moved(reasons::Why why) {
  for_each_socket([why](int fd, Socket& s) {
    if (s.shared() && (state_of(s.mine()) & (kLeaving | kGone)) == 0)
      leave(fd, s, Reader::kThis, why);
  });
}

}  // namespace clan::preload
