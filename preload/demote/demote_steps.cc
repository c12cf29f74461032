#include "demote/demote_steps.h"

#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "clan/detail/clock.h"
#include "clan/detail/words.h"
#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"
#include "kernel/tcp.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/hooks.h"
#include "state/remote.h"
#include "state/socket.h"
#include "table/open_file.h"
#include "tcp/ring.h"

namespace clan::preload {
namespace {

using socket_face::kGone;
using socket_face::kState;

}  // namespace

void nap() {
  timespec ts{0, 50'000};
  sys::call(SYS_nanosleep, &ts, nullptr);
}

bool closed(int fd) {
  pollfd p{fd, POLLRDHUP, 0};
  return sys::poll(&p, 1, 0) > 0 && !other_end_is_open(fd);
}

void set_gone(PipePage::Face& face) {
  add_state(face, kGone);  // PAIR face.state
}

// EPIPE: half-closed before, and that record is the last.
Pipe::Done put_last_record(Socket& s) {
  const bool ends = (state_of(s.mine()) & socket_face::kEnding) != 0;
  return ends ? s.pipe.end_sending() : s.pipe.leave();
}

void say_goodbye(int fd, Socket& s) {
  set_gone(s.mine());
  ring_or_tell_host(fd, s);
}

void ring_or_tell_host(int fd, Socket& s) {
  is_remote(s) ? wake_remote(fd, s) : (void)ring_bell(s);
}

void end_by_tcp(int fd, Socket& s) {
  sys::call(SYS_shutdown, fd, SHUT_WR);
  // order: a bit by itself, in a word whose others publish
  s.mine().words[kState].fetch_and(~std::uint64_t{socket_face::kEnding}, std::memory_order_acq_rel);
}

void settle(Socket& s) {
  // PAIR preload.resending: Dekker of a thread that reads from the kernel again and one that has
  // sent all again; each has said so before it looks here
  const bool back =
      s.back_in.load(std::memory_order_seq_cst) && !s.resending.load(std::memory_order_seq_cst);
  if (!back || (state_of(s.mine()) & kGone) == 0) return;
  OpenFileState& slot = s.open_file();
  // PAIR preload.gate: behind kGone, so that no other process sends again where it is not said
  if (OpenFileState::is_resend(words::load_acquire(slot.sends))) {
    s.resending.store(true, std::memory_order_seq_cst);  // PAIR preload.resending: checked later
    return;
  }
  slot.pin();
  slot.moved.store(0, std::memory_order_relaxed);  // relaxed: a word alone
  s.become(Socket::State::kKernel);
}

void read_kernel(int fd, Socket& s) {
  if (const int low_water = s.low_water.load(std::memory_order_relaxed); low_water > 1)
    sys::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low_water, sizeof low_water);
  // PAIR preload.back_in: SO_RCVLOWAT is the application's again. seq_cst: settle() reads
  // `resending` next
  s.back_in.store(true, std::memory_order_seq_cst);
}

void tell_sets(Socket& s) {
  if (s.is_watched() && !s.shared()) hooks.demoted(s);
}

}  // namespace clan::preload
