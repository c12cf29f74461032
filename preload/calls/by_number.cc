// syscall(): programs that call the kernel by number mean the same sockets.
#include <fcntl.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdarg>
#include <cstring>

#include "calls/interpose.h"
#include "os/real.h"
#include "share/fork.h"
#include "share/process_end.h"
#include "share/uring.h"

using namespace clan::preload;

namespace {

long plain(long number, const long (&a)[6]) {
  return real().syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

}  // namespace

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
    case SYS_seccomp:
      if (a[0] == SECCOMP_SET_MODE_STRICT || a[0] == SECCOMP_SET_MODE_FILTER)
        enter_sandbox(clan::reasons::Why::kSandboxed);
      break;
    case SYS_prctl:
      if (a[0] == PR_SET_SECCOMP) enter_sandbox(clan::reasons::Why::kSandboxed);
      break;
    case SYS_clone:
      // On a stack of its own the child does not come back here.
      if ((a[0] & CLONE_VM) == 0 && a[1] == 0) return forked_by([&] { return plain(number, a); });
      break;
    case SYS_clone3: {
      clone_args how{};
      const bool known = p1 != nullptr && n2 >= CLONE_ARGS_SIZE_VER0;
      if (known) std::memcpy(&how, p1, CLONE_ARGS_SIZE_VER0);
      if (known && (how.flags & CLONE_VM) == 0 && how.stack == 0) {
        return forked_by([&] { return plain(number, a); });
      }
      break;
    }
    case SYS_io_uring_setup: return ring_setup(static_cast<unsigned>(a[0]), p1);
    case SYS_io_uring_register:
      return ring_register(fd, static_cast<unsigned>(a[1]), reinterpret_cast<void*>(a[2]),
                           static_cast<unsigned>(a[3]));
    case SYS_read: return ::read(fd, p1, n2);
    case SYS_write: return ::write(fd, p1, n2);
    case SYS_readv: return ::readv(fd, static_cast<const iovec*>(p1), static_cast<int>(a[2]));
    case SYS_writev: return ::writev(fd, static_cast<const iovec*>(p1), static_cast<int>(a[2]));
    case SYS_recvfrom:
      return ::recvfrom(fd, p1, n2, static_cast<int>(a[3]), reinterpret_cast<sockaddr*>(a[4]),
                        reinterpret_cast<socklen_t*>(a[5]));
    case SYS_sendto:
      return ::sendto(fd, p1, n2, static_cast<int>(a[3]), reinterpret_cast<const sockaddr*>(a[4]),
                      static_cast<socklen_t>(a[5]));
    case SYS_recvmsg: return ::recvmsg(fd, static_cast<msghdr*>(p1), static_cast<int>(a[2]));
    case SYS_sendmsg: return ::sendmsg(fd, static_cast<const msghdr*>(p1), static_cast<int>(a[2]));
    case SYS_recvmmsg:
      return ::recvmmsg(fd, static_cast<mmsghdr*>(p1), static_cast<unsigned>(a[2]), static_cast<int>(a[3]),
                        reinterpret_cast<timespec*>(a[4]));
    case SYS_sendmmsg:
      return ::sendmmsg(fd, static_cast<mmsghdr*>(p1), static_cast<unsigned>(a[2]), static_cast<int>(a[3]));
    case SYS_preadv2:
      return ::preadv2(fd, static_cast<const iovec*>(p1), static_cast<int>(a[2]), a[3],
                       static_cast<int>(a[5]));
    case SYS_pwritev2:
      return ::pwritev2(fd, static_cast<const iovec*>(p1), static_cast<int>(a[2]), a[3],
                        static_cast<int>(a[5]));
    case SYS_sendfile:
      return ::sendfile(fd, static_cast<int>(a[1]), reinterpret_cast<off_t*>(a[2]),
                        static_cast<std::size_t>(a[3]));
    case SYS_splice:
      return ::splice(fd, static_cast<off64_t*>(p1), static_cast<int>(a[2]), reinterpret_cast<off64_t*>(a[3]),
                      static_cast<std::size_t>(a[4]), static_cast<unsigned>(a[5]));
    case SYS_getsockopt:
      return ::getsockopt(fd, static_cast<int>(a[1]), static_cast<int>(a[2]), reinterpret_cast<void*>(a[3]),
                          reinterpret_cast<socklen_t*>(a[4]));
    case SYS_setsockopt:
      return ::setsockopt(fd, static_cast<int>(a[1]), static_cast<int>(a[2]), reinterpret_cast<void*>(a[3]),
                          static_cast<socklen_t>(a[4]));
    case SYS_ppoll:
      return ::ppoll(reinterpret_cast<pollfd*>(a[0]), static_cast<nfds_t>(a[1]),
                     reinterpret_cast<const timespec*>(a[2]), reinterpret_cast<const sigset_t*>(a[3]));
    case SYS_pselect6: {
      // The last argument is a mask and its size.
      const auto* mask = reinterpret_cast<const sigset_t* const*>(a[5]);
      return ::pselect(fd, static_cast<fd_set*>(p1), reinterpret_cast<fd_set*>(a[2]),
                       reinterpret_cast<fd_set*>(a[3]), reinterpret_cast<const timespec*>(a[4]),
                       mask != nullptr ? *mask : nullptr);
    }
    case SYS_epoll_pwait2:
      return ::epoll_pwait2(fd, static_cast<epoll_event*>(p1), static_cast<int>(a[2]),
                            reinterpret_cast<const timespec*>(a[3]), reinterpret_cast<const sigset_t*>(a[4]));
    case SYS_prlimit64:
      return ::prlimit(static_cast<pid_t>(a[0]), static_cast<__rlimit_resource>(a[1]),
                       reinterpret_cast<const rlimit*>(a[2]), reinterpret_cast<rlimit*>(a[3]));
    case SYS_execve:
      return ::execve(reinterpret_cast<const char*>(a[0]), static_cast<char* const*>(p1),
                      reinterpret_cast<char* const*>(a[2]));
    case SYS_execveat:
      return ::execveat(fd, static_cast<const char*>(p1), reinterpret_cast<char* const*>(a[2]),
                        reinterpret_cast<char* const*>(a[3]), static_cast<int>(a[4]));
    case SYS_close_range:
      return ::close_range(static_cast<unsigned>(a[0]), static_cast<unsigned>(a[1]), static_cast<int>(a[2]));
    case SYS_close: return ::close(fd);
    case SYS_shutdown: return ::shutdown(fd, static_cast<int>(a[1]));
    case SYS_dup: return ::dup(fd);
    case SYS_dup3: return ::dup3(fd, static_cast<int>(a[1]), static_cast<int>(a[2]));
    case SYS_socket: return ::socket(fd, static_cast<int>(a[1]), static_cast<int>(a[2]));
    case SYS_bind: return ::bind(fd, static_cast<const sockaddr*>(p1), static_cast<socklen_t>(a[2]));
    case SYS_listen: return ::listen(fd, static_cast<int>(a[1]));
    case SYS_getsockname:
      return ::getsockname(fd, static_cast<sockaddr*>(p1), reinterpret_cast<socklen_t*>(a[2]));
    case SYS_getpeername:
      return ::getpeername(fd, static_cast<sockaddr*>(p1), reinterpret_cast<socklen_t*>(a[2]));
    case SYS_accept4:
      return ::accept4(fd, static_cast<sockaddr*>(p1), reinterpret_cast<socklen_t*>(a[2]),
                       static_cast<int>(a[3]));
    case SYS_accept: return ::accept(fd, static_cast<sockaddr*>(p1), reinterpret_cast<socklen_t*>(a[2]));
    case SYS_connect: return ::connect(fd, static_cast<const sockaddr*>(p1), static_cast<socklen_t>(a[2]));
    case SYS_epoll_ctl:
      return ::epoll_ctl(fd, static_cast<int>(a[1]), static_cast<int>(a[2]),
                         reinterpret_cast<epoll_event*>(a[3]));
    case SYS_epoll_pwait:
      return ::epoll_pwait(fd, static_cast<epoll_event*>(p1), static_cast<int>(a[2]), static_cast<int>(a[3]),
                           reinterpret_cast<const sigset_t*>(a[4]));
    case SYS_ioctl: return ::ioctl(fd, static_cast<unsigned long>(a[1]), reinterpret_cast<void*>(a[2]));
    case SYS_fcntl: return ::fcntl(fd, static_cast<int>(a[1]), reinterpret_cast<void*>(a[2]));
    case SYS_fork: return forked_by([&] { return plain(number, a); });
    case SYS_poll:
      return ::poll(reinterpret_cast<pollfd*>(a[0]), static_cast<nfds_t>(a[1]), static_cast<int>(a[2]));
    case SYS_dup2: return ::dup2(fd, static_cast<int>(a[1]));
    case SYS_select:
      return ::select(fd, static_cast<fd_set*>(p1), reinterpret_cast<fd_set*>(a[2]),
                      reinterpret_cast<fd_set*>(a[3]), reinterpret_cast<timeval*>(a[4]));
    case SYS_epoll_wait:
      return ::epoll_wait(fd, static_cast<epoll_event*>(p1), static_cast<int>(a[2]), static_cast<int>(a[3]));
    default: break;
  }
  return plain(number, a);
}
