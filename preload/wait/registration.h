// The kernel's part of an epoll set: its descriptors, and what it reports of them.
#pragma once

#include <fcntl.h>
#include <sys/epoll.h>

#include <cstddef>
#include <cstdio>
#include <cstring>

#include "os/sys.h"
#include "wait/epoll_set.h"

namespace clan::preload {

/// Calls `f(fd, events)` for all in a set, from /proc. False: the kernel does not say.
template <typename F>
bool for_registered(int epfd, F&& f) {
  KeepErrno keep;
  char path[48], text[256];
  std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", epfd);
  const int file = static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC));
  if (file < 0) return false;
  std::size_t have = 0;
  for (long n; (n = sys::call(SYS_read, file, text + have, sizeof text - 1 - have)) > 0;) {
    have += static_cast<std::size_t>(n);
    text[have] = 0;
    char* line = text;
    for (char* end; (end = std::strchr(line, '\n')) != nullptr; line = end + 1) {
      int fd = -1;
      unsigned events = 0;
      if (std::sscanf(line, "tfd: %d events: %x", &fd, &events) == 2) f(fd, events);
    }
    have = std::strlen(line);
    std::memmove(text, line, have + 1);
    if (have == sizeof text - 1) have = 0;
  }
  sys::close(file);
  return true;
}

bool is_empty(int epfd);

/// Does epoll_ctl(). EBADF if the set was closed.
int change(const Set& set, int op, int fd, epoll_event* event);

/// Asks the kernel for events, without waiting.
int ask_kernel(const Set& set, epoll_event* events, int most);

/// Changes a registration that may be unmodifiable (EPOLLEXCLUSIVE), or gone by another process.
void change_to(const Set& set, int fd, epoll_event* event);

/// Returns what the kernel watches of a moved socket: TCP's news, by edges.
epoll_event for_tcp(int fd);

/// Whether it is EPOLLONESHOT and the kernel has reported it.
bool is_spent(const Interest& i);

/// Answers it from the pipe from now on; watch_moved() also makes the kernel watch for_tcp().
void answer_from_pipe(Interest& i);

void watch_moved(Interest& i);

/// Makes the kernel watch this end's bell in the set, once for all descriptors of the socket.
/// False: no bell or no room; threads must not sleep long.
bool watches_bell(Interest& i);
void leave_bell(Interest& i);

/// Leaves a socket that is back on TCP to the kernel, as the application asked.
void watch_kernel(Interest& i);

/// Whether it carries our tag: a moved socket.
inline bool has_our_tag(const epoll_event& event) {
  return (event.data.u64 & ~(kTagged - 1)) == kTag;
}

/// Drops ours from the kernel's events, when memory is short.
int without_ours(epoll_event* events, int told);

/// Does what prepare() would have done for a new request, as a thread may sleep in the set, and
/// wakes it if something is ready. Under the lock. `look`: false while the socket moves, when the
/// sleeper checks itself.
void tell_sleepers(Interest& i, bool look);

}  // namespace clan::preload
