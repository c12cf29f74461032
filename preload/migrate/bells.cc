#include "migrate/bells.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstring>
#include <utility>

#include "os/sys.h"
#include "state/internal_fds.h"
#include "state/socket.h"

namespace clan::preload {
namespace {

// The read end of a pipe; its write end is opened by that. -1: there is none.
int make_pipe() {
  int ends[2];
  if (sys::call(SYS_pipe2, ends, O_CLOEXEC | O_NONBLOCK) != 0) return -1;
  sys::fcntl(ends[1], F_SETPIPE_SZ, 4096);
  sys::close(ends[1]);
  return ends[0];
}

// An open file of this process alone, so that no other one can make a write wait. For reading as
// well: what writes to a bell of a process that has died gets no SIGPIPE.
int open_to_ring(int pipe) {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", pipe);
  struct stat what {};
  if (sys::call(SYS_newfstatat, pipe, "", &what, AT_EMPTY_PATH) != 0 || !S_ISFIFO(what.st_mode))
    return -1;
  return static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDWR | O_NONBLOCK | O_CLOEXEC));
}

bool keep(Socket& s, int watched, int rung) {
  s.bell.keep(move_high_to_spare(watched));
  s.others_bell.keep(move_high_to_spare(open_to_ring(rung)));
  const bool both = s.bell.get() >= 0 && s.others_bell.get() >= 0;
  if (!both) s.Bells::reset();
  return both;
}

}  // namespace

PassedBells::~PassedBells() {
  const KeepErrno keep_errno;
  for (const int fd : fds) {
    if (fd >= 0) sys::close(fd);
  }
}

void PassedBells::make(Socket& s) {
  const KeepErrno keep_errno;
  for (int& fd : fds) fd = make_pipe();
  const int mine = fds[1] < 0 ? -1 : sys::fcntl(fds[1], F_DUPFD_CLOEXEC, 0);
  if (fds[0] >= 0 && keep(s, mine, fds[0])) return;
  for (int& fd : fds) {
    if (const int made = std::exchange(fd, -1); made >= 0) sys::close(made);
  }
}

void PassedBells::adopt(Socket& s) {
  const KeepErrno keep_errno;
  if (count() > 0) (void)keep(s, std::exchange(fds[0], -1), fds[1]);
}

}  // namespace clan::preload
