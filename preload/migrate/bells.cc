#include "migrate/bells.h"

#include <fcntl.h>

#include <cstdio>
#include <cstring>

#include "os/sys.h"
#include "state/internal_fds.h"
#include "state/socket.h"

namespace clan::preload {
namespace {

// Its write end is open for reading as well: a process that writes to a bell whose owner has died
// gets no SIGPIPE.
bool make_bell(int* watched, int* rung) {
  int ends[2];
  if (sys::call(SYS_pipe2, ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  char path[32];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
  sys::fcntl(ends[1], F_SETPIPE_SZ, 4096);
  *rung = static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDWR | O_NONBLOCK | O_CLOEXEC));
  sys::close(ends[1]);
  *watched = ends[0];
  if (*rung >= 0) return true;
  sys::close(*watched);
  return false;
}

bool keep_bells(Socket& s, int watched, int rung) {
  s.bell.keep(move_high_to_spare(watched));
  s.others_bell.keep(move_high_to_spare(rung));
  const bool both = s.bell.get() >= 0 && s.others_bell.get() >= 0;
  if (!both) s.Bells::reset();
  return both;
}

}  // namespace

bool make_bells(Socket& s, int (&passed)[2]) {
  const KeepErrno keep;
  int mine = -1;
  if (!make_bell(&mine, &passed[1])) return false;
  int rung = -1;
  if (!make_bell(&passed[0], &rung)) {
    sys::close(mine);
    sys::close(passed[1]);
    return false;
  }
  if (keep_bells(s, mine, rung)) return true;
  for (const int fd : passed) sys::close(fd);
  return false;
}

void adopt_bells(Socket& s, const int (&passed)[2]) {
  const KeepErrno keep;
  (void)keep_bells(s, passed[0], passed[1]);
}

}  // namespace clan::preload
