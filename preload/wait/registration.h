// What the kernel has of an epoll set: which descriptors, and what it is asked to report about
// them.
#pragma once

#include <fcntl.h>
#include <sys/epoll.h>

#include <cstddef>
#include <cstdio>
#include <cstring>

#include "os/sys.h"
#include "wait/epoll_set.h"

namespace clan::preload {

/// Calls `f(fd, events)` for all that is in a set, as the kernel has it. False: the kernel does not
/// say.
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

/// As far as the kernel says.
bool is_empty(int epfd);

/// Nobody knows the descriptor of a set that has been closed.
int change(const Set& set, int op, int fd, epoll_event* event);

/// What the kernel has to say, without waiting.
int ask_kernel(const Set& set, epoll_event* events, int most);

/// Even if it cannot be modified (EPOLLEXCLUSIVE), or is not there any more (another process has
/// taken it out).
void change_to(const Set& set, int fd, epoll_event* event);

/// TCP's news about a socket that has moved, by edges. What level there is, the pipe says.
epoll_event for_tcp(int fd);

/// EPOLLONESHOT, and the kernel has reported it already: then it asks for nothing any more.
bool is_spent(const Interest& i);

/// It is answered from the pipe from now on, and the kernel watches for_tcp().
void answer_from_pipe(Interest& i);

void watch_moved(Interest& i);

/// The kernel watches in the set what the other end rings: the bell of this end, once for all
/// descriptors of the socket. False: there is none, or no room; no thread is to sleep for long.
bool watches_bell(Interest& i);
void leave_bell(Interest& i);

/// The socket has gone back to TCP: the kernel watches for what the application asked for.
void watch_kernel(Interest& i);

/// By its tag: of a socket that has moved.
inline bool has_our_tag(const epoll_event& event) {
  return (event.data.u64 & ~(kTagged - 1)) == kTag;
}

/// What the kernel has reported of plain descriptors, where there is no memory for more.
int without_ours(epoll_event* events, int told);

/// A thread may be asleep in the set, and has not prepared for what is newly asked of a socket that
/// has moved: does it in its place, and wakes it if there is something already. Under the lock.
/// `look`: false while the socket is just moving; then the sleeper looks itself.
void tell_sleepers(Interest& i, bool look);

}  // namespace clan::preload
