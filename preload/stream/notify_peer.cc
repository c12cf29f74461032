#include "stream/notify_peer.h"

#include <fcntl.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "clan/face/socket_face.h"
#include "demote/demote_on_request.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/remote.h"
#include "state/socket.h"
#include "stream/bell.h"
#include "table/fd_table.h"
#include "table/open_file.h"
#include "tcp/aborted.h"
#include "tcp/doorbell.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

using socket_face::kGone;

}  // namespace

bool still_names(int fd, const Socket& s) {
  if (acquire(fd).get() == &s) return true;
  errno = EBADF;
  return false;
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
  // The number of doorbells since the switch distinguishes them from the application's bytes.
  // Another thread may just be sending by TCP: then the other end has not read all of TCP's, and
  // does not sleep for long for room.
  if (!switch_sending(fd, s)) return;
  if ((state_of(s.theirs()) & socket_face::kClosed) != 0) return;
  if (send_counted_doorbell(fd, s) > 0) {
    // relaxed: for people to read
    face.words[socket_face::kWakeups].fetch_add(1, std::memory_order_relaxed);
  } else if (errno != EAGAIN && !closed_under_us()) {
    note_error(s, errno);
  }
}

}  // namespace clan::preload
