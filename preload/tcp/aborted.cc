#include "tcp/aborted.h"

#include <sys/ioctl.h>

#include <cerrno>

#include "clan/detail/log.h"
#include "clan/face/socket_face.h"
#include "kernel/tcp.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/named.h"
#include "state/remote.h"

namespace clan::preload {
namespace {

// For all processes of both ends: it may be closed before they have looked.
void say_reset(Socket& s) {
  if (!s.pipe) return;
  for (PipePage::Face* face : {&s.mine(), &s.theirs()}) add_state(*face, socket_face::kReset);
}

}  // namespace

void note_error(Socket& s, int error) {
  s.error_taken.set();
  // Behind the other end's it is EPIPE, which says nothing new.
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
  // What lies there may be what the other end sends by TCP before its host has said that it does.
  if (is_remote(s)) return false;
  int queued = 0;
  if (!s.has_drained() || sys::ioctl(fd, FIONREAD, &queued) != 0 || queued <= 0) return false;
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
