// Calls that make processes, and streams on descriptors.
#include <fcntl.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "clan/log.h"
#include "epoll.h"
#include "real.h"
#include "socket.h"

using namespace clan::preload;

namespace {

// fork() of the C library runs these, whoever calls it.
void before_fork() {
  share_slots();
  lock_epoll();
}
void in_parent() { unlock_epoll(); }
void in_child() {
  unlock_epoll();
  forked();
}

// What a program that is executed finds: "descriptor:pipe:end,…" of connections that go on in it.
constexpr char kInherited[] = "CLAN_INHERITED";

void take_over() {
  const char* text = std::getenv(kInherited);
  if (text == nullptr) return;
  int fd, memfd, end, used;
  while (std::sscanf(text, "%d:%d:%d,%n", &fd, &memfd, &end, &used) == 3) {
    adopt_pipe(fd, memfd, end);
    text += used;
  }
  ::unsetenv(kInherited);
}

struct Inheritance {
  char text[16384];
  std::size_t used = 0;
};

// Connections that stay open across exec, and the descriptors of their pipes, made to stay open too.
void hand_on(int fd, Socket& s, void* argument) {
  auto& list = *static_cast<Inheritance*>(argument);
  const int flags = sys::fcntl(fd, F_GETFD);
  if (flags < 0 || (flags & FD_CLOEXEC) != 0) return;
  if (!s.shared()) {
    s.slot.load()->pinned = 1;  // the new program knows nothing of it
    return;
  }
  if (s.pipe.memfd() < 0) return;
  char item[64];
  const int n = std::snprintf(item, sizeof item, "%d:%d:%d,", fd, s.pipe.memfd(), s.pipe.end());
  if (list.used + static_cast<std::size_t>(n) >= sizeof list.text) return;
  std::memcpy(list.text + list.used, item, static_cast<std::size_t>(n) + 1);
  list.used += static_cast<std::size_t>(n);
  sys::fcntl(s.pipe.memfd(), F_SETFD, 0);
}

int exec(const char* path, char* const* arguments, char* const* environment) {
  static Inheritance list;  // after exec nobody else needs it; after vfork the parent waits
  list.used = 0;
  for_each_socket(hand_on, &list);
  if (list.used == 0) return real().execve(path, arguments, environment);
  std::size_t count = 0;
  while (environment != nullptr && environment[count] != nullptr) ++count;
  char variable[sizeof kInherited + sizeof list.text + 1];
  std::snprintf(variable, sizeof variable, "%s=%s", kInherited, list.text);
  auto** with = static_cast<char**>(alloca((count + 2) * sizeof(char*)));
  for (std::size_t i = 0; i < count; ++i) with[i] = environment[i];
  with[count] = variable;
  with[count + 1] = nullptr;
  const int rc = real().execve(path, arguments, with);
  // It failed: the pipes are ours alone again.
  const int error = errno;
  for_each_socket(
      [](int, Socket& s, void*) {
        if (s.shared() && s.pipe.memfd() >= 0) sys::fcntl(s.pipe.memfd(), F_SETFD, FD_CLOEXEC);
      },
      nullptr);
  errno = error;
  return rc;
}

__attribute__((constructor)) void start() {
  // Nothing more: a program without TCP connections pays for this only.
  ::pthread_atfork(before_fork, in_parent, in_child);
  if (std::getenv(kInherited) != nullptr) take_over();
}

}  // namespace

CLAN_INTERPOSE int execve(const char* path, char* const* arguments, char* const* environment) {
  return exec(path, arguments, environment);
}

CLAN_INTERPOSE int execv(const char* path, char* const* arguments) { return exec(path, arguments, environ); }

CLAN_INTERPOSE int fclose(FILE* stream) {
  if (stream != nullptr) {
    const int fd = ::fileno(stream);
    if (fd >= 0) {
      // What is buffered goes out by write() of ours only if it is ours to write: see fdopen.
      forget_epoll(fd);
      if (hold(fd)) {
        const int rc = std::fflush(stream);
        forget(fd);
        return real().fclose(stream) != 0 ? EOF : rc;
      }
    }
  }
  return real().fclose(stream);
}

// Programs that call the kernel by number mean the same sockets.
CLAN_INTERPOSE long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  const auto fd = static_cast<int>(a[0]);
  auto* p1 = reinterpret_cast<void*>(a[1]);
  const auto n2 = static_cast<std::size_t>(a[2]);
  switch (number) {
    case SYS_read:
      return ::read(fd, p1, n2);
    case SYS_write:
      return ::write(fd, p1, n2);
    case SYS_readv:
      return ::readv(fd, static_cast<const iovec*>(p1), static_cast<int>(a[2]));
    case SYS_writev:
      return ::writev(fd, static_cast<const iovec*>(p1), static_cast<int>(a[2]));
    case SYS_recvfrom:
      return ::recvfrom(fd, p1, n2, static_cast<int>(a[3]), reinterpret_cast<sockaddr*>(a[4]),
                        reinterpret_cast<socklen_t*>(a[5]));
    case SYS_sendto:
      return ::sendto(fd, p1, n2, static_cast<int>(a[3]), reinterpret_cast<const sockaddr*>(a[4]),
                      static_cast<socklen_t>(a[5]));
    case SYS_recvmsg:
      return ::recvmsg(fd, static_cast<msghdr*>(p1), static_cast<int>(a[2]));
    case SYS_sendmsg:
      return ::sendmsg(fd, static_cast<const msghdr*>(p1), static_cast<int>(a[2]));
    case SYS_close:
      return ::close(fd);
    case SYS_shutdown:
      return ::shutdown(fd, static_cast<int>(a[1]));
    case SYS_dup:
      return ::dup(fd);
    case SYS_dup3:
      return ::dup3(fd, static_cast<int>(a[1]), static_cast<int>(a[2]));
    case SYS_accept4:
      return ::accept4(fd, static_cast<sockaddr*>(p1), reinterpret_cast<socklen_t*>(a[2]),
                       static_cast<int>(a[3]));
    case SYS_accept:
      return ::accept(fd, static_cast<sockaddr*>(p1), reinterpret_cast<socklen_t*>(a[2]));
    case SYS_connect:
      return ::connect(fd, static_cast<const sockaddr*>(p1), static_cast<socklen_t>(a[2]));
    case SYS_epoll_ctl:
      return ::epoll_ctl(fd, static_cast<int>(a[1]), static_cast<int>(a[2]),
                         reinterpret_cast<epoll_event*>(a[3]));
    case SYS_epoll_pwait:
      return ::epoll_pwait(fd, static_cast<epoll_event*>(p1), static_cast<int>(a[2]),
                           static_cast<int>(a[3]), reinterpret_cast<const sigset_t*>(a[4]));
    case SYS_ioctl:
      return ::ioctl(fd, static_cast<unsigned long>(a[1]), reinterpret_cast<void*>(a[2]));
    case SYS_fcntl:
      return ::fcntl(fd, static_cast<int>(a[1]), reinterpret_cast<void*>(a[2]));
#ifdef SYS_poll
    case SYS_poll:
      return ::poll(reinterpret_cast<pollfd*>(a[0]), static_cast<nfds_t>(a[1]), static_cast<int>(a[2]));
    case SYS_dup2:
      return ::dup2(fd, static_cast<int>(a[1]));
    case SYS_epoll_wait:
      return ::epoll_wait(fd, static_cast<epoll_event*>(p1), static_cast<int>(a[2]),
                          static_cast<int>(a[3]));
#endif
    default:
      return real().syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  }
}

namespace {

// The C library's own streams read and write past us, so a stream on a TCP socket is made of calls of ours.
ssize_t cookie_read(void* cookie, char* buffer, size_t n) {
  return ::read(static_cast<int>(reinterpret_cast<std::intptr_t>(cookie)), buffer, n);
}
ssize_t cookie_write(void* cookie, const char* buffer, size_t n) {
  const int fd = static_cast<int>(reinterpret_cast<std::intptr_t>(cookie));
  std::size_t done = 0;
  while (done < n) {
    const ssize_t k = ::write(fd, buffer + done, n - done);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) break;
    done += static_cast<std::size_t>(k);
  }
  return static_cast<ssize_t>(done);
}
int cookie_close(void* cookie) { return ::close(static_cast<int>(reinterpret_cast<std::intptr_t>(cookie))); }

}  // namespace

CLAN_INTERPOSE FILE* fdopen(int fd, const char* mode) {
  Held s = hold(fd);
  if (!s) return real().fdopen(fd, mode);
  const cookie_io_functions_t calls{cookie_read, cookie_write, nullptr, cookie_close};
  FILE* stream = ::fopencookie(reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), mode, calls);
  // fileno() must go on to work.
  if (stream != nullptr) stream->_fileno = fd;
  return stream;
}
