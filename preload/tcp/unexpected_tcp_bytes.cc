#include "tcp/unexpected_tcp_bytes.h"

#include <sys/ioctl.h>

#include <cstdint>
#include <cstring>

#include "clan/face/socket_face.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/remote.h"
#include "tcp/aborted.h"

namespace clan::preload {

bool reset_for_strays(int fd, Socket& s) {
  using namespace socket_face;
  KeepErrno keep;
  // What lies there may be what the other end sends by TCP before its host has said that it does.
  if (has_remote_bells(s)) return take_remote_bells(fd, s, 0), false;
  // order: this count, then the queue
  const std::uint64_t had = s.mine().words[kDoorbellsRead].load(std::memory_order_seq_cst);
  int queued = 0;
  if (!s.has_drained() || sys::ioctl(fd, FIONREAD, &queued) != 0 || queued <= 0) return false;
  // order: the queue, then this count
  const std::uint64_t rung = doorbells_of(s.theirs(), std::memory_order_seq_cst);
  if (rung >= had && static_cast<std::uint64_t>(queued) <= rung - had) return false;
  // This end goes back: others may be at its queue. The other end has: these bytes are its
  // application's.
  if ((state_of(s.mine()) & (kLeaving | kGone)) != 0 ||
      (state_of(s.theirs()) & (kSending | kGone)) != kSending)
    return false;
  // relaxed: a flag by itself
  s.pipe.page().head.broken.store(1, std::memory_order_relaxed);
  break_off(fd, s, "the other end sends bytes by TCP past its pipe");
  return true;
}

}  // namespace clan::preload
