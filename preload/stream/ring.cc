#include "stream/ring.h"

#include <fcntl.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "clan/dekker.h"
#include "clan/socket_face.h"
#include "migrate/answer.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/doorbell_count.h"
#include "state/face.h"
#include "state/fd_table.h"
#include "state/open_file.h"
#include "state/remote.h"
#include "state/socket.h"
#include "stream/aborted.h"
#include "stream/bell.h"
#include "stream/doorbell.h"
#include "stream/tcp_prefix.h"

namespace clan::preload {
namespace {

using socket_face::kGone;

}  // namespace

bool still_names(int fd, const Socket& s) {
  if (hold(fd).get() == &s) return true;
  errno = EBADF;
  return false;
}

namespace {

// By a thread that is Ringing.
void send_bell(int fd, Socket& s) {
  auto& face = s.mine();
  auto& doorbells = face.words[socket_face::kDoorbells];
  const DoorbellCall call(face);
  if (!call || !count_doorbell(doorbells)) return;
  face.words[socket_face::kWakeups].fetch_add(1, std::memory_order_relaxed);
  ssize_t sent;
  while ((sent = send_doorbell(fd)) < 0) {
    if (errno == EINTR) continue;
    const int other = closed_under_us() ? descriptor_of(s) : -1;
    if (other < 0 || other == fd) break;
    fd = other;
  }
  if (sent > 0) return;
  uncount_doorbell(doorbells);
  // EAGAIN: its queue is full of doorbells already. Else it is gone.
  if (sent < 0 && errno != EAGAIN && !closed_under_us()) note_error(s, errno);
}

}  // namespace

void Announced::announce(int fd, Socket& s) {
  if (!others_hold(s) || (state_of(s.theirs()) & socket_face::kClosed) != 0) return;
  ringing_.emplace(s.mine(), s.pipe.call_waits());
  // PAIR face.bells: Dekker with nap_beside_ringer(), behind the count of those that ring
  dekker::settle();
  const auto& reader = s.pipe.page().ends[1 - s.pipe.end()].receiver;
  // Its wish stays: it is for what is published now, and taken when that has been done.
  Pipe::Done wanted;
  wanted.ring_for(reader.waiting.load(std::memory_order_relaxed));
  if (!*ringing_ || !wanted.must_ring || (wanted.by_bell && ring_bell(s))) return;
  KeepErrno keep;
  send_bell(fd, s);
}

void ring_doorbell(int fd, Socket& s) {
  KeepErrno keep;
  auto& face = s.mine();
  if (is_to_go(s)) {
    (void)answer_leaving(fd, s);
    if ((state_of(face) & kGone) != 0) return;  // else it rings as long as it may
  }
  if (is_remote(s)) {
    (void)switch_sending(fd, s);
    return wake_remote(fd, s);
  }
  // Doorbells are told from the application's bytes by their number since the switch. Another
  // thread may just be sending by TCP: then the other end has not read all of TCP's, and does not
  // sleep for long for room.
  if (!switch_sending(fd, s)) return;
  if ((state_of(s.theirs()) & socket_face::kClosed) != 0) return;
  Ringing ringing(face, s.pipe.call_waits());
  if (!ringing) return;
  send_bell(fd, s);
}

}  // namespace clan::preload
