#include "tcp/aborted.h"

#include <sys/ioctl.h>

#include <cerrno>

#include "clan/detail/log.h"
#include "clan/face/socket_face.h"
#include "kernel/tcp.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/named.h"
#include "state/remote.h"

namespace clan::preload {
namespace {

// Notifies all processes of both ends, even if the descriptor is closed before they check.
void say_reset(Socket& s) {
  if (!s.pipe) return;
  for (PipePage::Face* face : {&s.mine(), &s.theirs()}) add_state(*face, socket_face::kReset);
}

}  // namespace

void note_error(Socket& s, int error) {
  s.error_taken.set();
  // EPIPE, after the peer's end, says nothing new.
  if (s.pipe && !is_remote(s) && error != EPIPE) {
    s.error.store(error, std::memory_order_relaxed);  // relaxed: kernel_error publishes it
    say_reset(s);
  }
  s.kernel_error.set();
}

void break_off(int fd, Socket& s, const char* why) {
  const Named connection(fd, s);
  log_line(LogLevel::kError,
           "%s: %s; the connection is reset. CLAN_EXCEPT=%u keeps such connections on TCP",
           connection.text(), why, connection.port());
  say_reset(s);
  s.kernel_error.set();
  reset_connection(fd);
}

bool reset_for_strays(int fd, Socket& s) {
  using namespace socket_face;
  KeepErrno keep;
  // The peer may send these by TCP before its host has reported it.
  if (is_remote(s)) return false;
  int queued = 0;
  if (!s.has_drained() || sys::ioctl(fd, FIONREAD, &queued) != 0 || queued <= 0) return false;
  // If this end leaves, others may read its queue; if the peer has, these bytes are the program's.
  if ((state_of(s.mine()) & (kLeaving | kGone)) != 0 ||
      (state_of(s.theirs()) & (kSending | kGone)) != kSending)
    return false;
  // relaxed: a flag
  s.pipe.page().head.broken.store(1, std::memory_order_relaxed);
  break_off(fd, s, "the other end sends bytes by TCP past its pipe");
  return true;
}

}  // namespace clan::preload
