#include "migrate/bells.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <string_view>
#include <utility>

#include "migrate/verify_connection.h"
#include "os/sys.h"
#include "table/internal_fds.h"

namespace clan::preload {
namespace {

// Makes it as small as a page.
bool make_pipe(int (&ends)[2]) {
  if (sys::call(SYS_pipe2, ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  sys::fcntl(ends[1], F_SETPIPE_SZ, 4096);
  return true;
}

// Returns a read end, by which the ringer opens the pipe (open_to_ring); or -1.
int make_pipe_bell() {
  int ends[2];
  if (!make_pipe(ends)) return -1;
  sys::close(ends[1]);
  return ends[0];
}

int make_timer_bell() {
  return static_cast<int>(
      sys::call(SYS_timerfd_create, CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
}

// Whether a write to a pipe that is not empty, or is full, is an edge: not on every kernel.
bool each_write_is_an_edge() {
  static const bool is = [] {
    const int set = static_cast<int>(sys::call(SYS_epoll_create1, EPOLL_CLOEXEC));
    int ends[2];
    if (!make_pipe(ends)) return sys::close(set), false;
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    bool all = sys::epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event) == 0;
    char page[4096] = {};
    for (const std::size_t bytes :
         {std::size_t{1}, std::size_t{1}, sizeof page - 2, std::size_t{1}}) {
      (void)sys::call(SYS_write, ends[1], page, bytes);
      all = sys::epoll_wait(set, &event, 1, 0) == 1 && all;
    }
    for (const int fd : {set, ends[0], ends[1]}) sys::close(fd);
    return all;
  }();
  return is;
}

bool may_have_pipes(int through) {
  uid_t uid;
  return allowed_peer(through, &uid) && uid == ::geteuid() && each_write_is_an_edge();
}

bool is_timer(int fd) {
  itimerspec set;
  return sys::call(SYS_timerfd_gettime, fd, &set) == 0;
}

bool is_pipe(int fd, char (&path)[32]) {
  char link[8] = {};
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return sys::call(SYS_readlinkat, AT_FDCWD, path, link, sizeof link) > 0 &&
         std::string_view(link, 6) == "pipe:[";
}

// A pipe gets an open file of this process alone, so that no other process can make a write wait.
// It can read as well, so that a write after the reader's death is no SIGPIPE.
int open_to_ring(int bell) {
  char path[32];
  if (is_timer(bell)) return sys::fcntl(bell, F_DUPFD_CLOEXEC, 0);
  if (!is_pipe(bell, path)) return -1;
  return static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDWR | O_NONBLOCK | O_CLOEXEC));
}

bool keep(Socket& s, int watched, int rung) {
  s.others_bell.keep(move_high_to_spare(open_to_ring(rung)));
  s.bell.keep(move_high_to_spare(watched));
  const bool both = s.bell.get() >= 0 && s.others_bell.get() >= 0;
  if (!both) s.Bells::reset();
  return both;
}

}  // namespace

bool make_own_bell(Socket& s) {
  const KeepErrno keep_errno;
  const int bell = each_write_is_an_edge() ? make_pipe_bell() : make_timer_bell();
  return bell >= 0 && keep(s, bell, bell);
}

PassedBells::~PassedBells() {
  const KeepErrno keep_errno;
  for (const int fd : fds) {
    if (fd >= 0) sys::close(fd);
  }
}

bool PassedBells::make_of_a_kind(Socket& s, int (*bell)()) {
  for (int& fd : fds) fd = bell();
  if (fds[0] >= 0 && fds[1] >= 0 && keep(s, sys::fcntl(fds[1], F_DUPFD_CLOEXEC, 0), fds[0]))
    return true;
  for (int& fd : fds) {
    if (const int made = std::exchange(fd, -1); made >= 0) sys::close(made);
  }
  return false;
}

bool PassedBells::make(Socket& s, int through) {
  const KeepErrno keep_errno;
  uid_t uid;
  if (may_have_pipes(through) && make_of_a_kind(s, make_pipe_bell)) return true;
  return allowed_peer(through, &uid) && make_of_a_kind(s, make_timer_bell);
}

bool PassedBells::adopt(Socket& s, int through) {
  const KeepErrno keep_errno;
  char path[32];
  if (count() == 0) return false;
  const bool are_bells =
      is_timer(fds[0]) ? is_timer(fds[1])
                       : is_pipe(fds[0], path) && is_pipe(fds[1], path) && may_have_pipes(through);
  if (!are_bells) return false;
  return keep(s, std::exchange(fds[0], -1), fds[1]);
}

}  // namespace clan::preload
