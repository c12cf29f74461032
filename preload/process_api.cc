// Calls that make processes, and streams on descriptors.
#include <alloca.h>
#include <elf.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "af_clan.h"
#include "clan/log.h"
#include "config.h"
#include "epoll.h"
#include "real.h"
#include "socket.h"
#include "uring.h"

extern "C" int __vasprintf_chk(char** text, int flag, const char* format, va_list list);

using namespace clan::preload;

namespace {

// fork() of the C library runs these, whoever calls it.
std::atomic_flag forking = ATOMIC_FLAG_INIT;

void before_fork() {
  while (forking.test_and_set(std::memory_order_acquire)) sched_yield();
  share_slots();
  lock_epoll();
  lock_af_clan();
  lock_sockets();
}
void in_parent() {
  unlock_sockets();
  unlock_af_clan();
  unlock_epoll();
  forking.clear(std::memory_order_release);
}

void in_child() {
  note_process();
  unlock_sockets();
  unlock_af_clan();
  unlock_epoll();
  forking.clear(std::memory_order_release);
  forked();
}

// Whoever shares our sockets must find their pipes when we are gone.
void at_exit() {
  if (in_borrowed_memory()) return;
  for_each_socket(
      [](int fd, Socket& s, void*) {
        if (s.offer_name.load(std::memory_order_relaxed) != 0) withdraw_offer(s);
        if (!s.shared() || !s.inherited.load(std::memory_order_relaxed) || s.left_at_exit.exchange(true))
          return;
        leave_to_others(fd, s);
        auto& holders = s.mine().words[clan::socket_face::kHolders];
        if (holders.load() > 1) holders.fetch_sub(1);
      },
      nullptr);
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
  char item[64];
  const int n =
      std::snprintf(item, sizeof item, "%d:%d:%d,", fd, s.shared() ? s.pipe.memfd() : -1, s.pipe.end());
  // A standard stream of the new program would read and write past us.
  if (fd <= STDERR_FILENO || !s.shared() || s.pipe.memfd() < 0 ||
      list.used + static_cast<std::size_t>(n) >= sizeof list.text) {
    leave_pipe(fd, true);
    return;
  }
  std::memcpy(list.text + list.used, item, static_cast<std::size_t>(n) + 1);
  list.used += static_cast<std::size_t>(n);
  sys::fcntl(s.pipe.memfd(), F_SETFD, 0);
}

// Somebody without the library is going to have what is not closed at exec.
void take_back(int fd, Socket&, void*) {
  const int flags = sys::fcntl(fd, F_GETFD);
  if (flags >= 0 && (flags & FD_CLOEXEC) == 0) leave_pipe(fd, true);
}

// A sandbox is about to be closed around the process: it knows the system calls of the program, not ours, and
// may kill for any other. Nothing moves here any more, and what has moved goes back while that is possible.
// Sockets that other processes share with us stay on TCP there too, as we could not follow them.
void enter_sandbox() {
  disable();
  leave_all_pipes();
}

// --- does a program load us? When in doubt: no, and its connections go by TCP -------------------------

// And is not told to leave all sockets alone.
bool names_us(char* const* environment) {
  bool loads = false, serves = true;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    if (std::strncmp(*environment, "LD_PRELOAD=", 11) == 0) {
      loads = std::strstr(*environment, "libclan-preload") != nullptr;
    } else if (std::strncmp(*environment, "CLAN_DISABLE=", 13) == 0 ||
               std::strncmp(*environment, "CLAN_CONFIG=", 12) == 0) {
      const char* name = (*environment)[5] == 'D' ? "CLAN_DISABLE" : "CLAN_CONFIG";
      const char* ours = ::getenv(name);  // what it says has not kept us from serving
      serves &= ours != nullptr && std::strcmp(std::strchr(*environment, '=') + 1, ours) == 0;
    }
  }
  return loads && serves;
}

// A dynamically linked program of this machine without privileges of its own, or a script for one.
bool is_loaded_by_linker(const char* path, int depth) {
  struct Closed {
    int fd;
    ~Closed() {
      if (fd >= 0) sys::close(fd);
    }
  } file{static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC))};
  struct stat st {};
  if (file.fd < 0 || ::fstat(file.fd, &st) != 0 || (st.st_mode & (S_ISUID | S_ISGID)) != 0) return false;
  if (::fgetxattr(file.fd, "security.capability", nullptr, 0) >= 0) return false;
  alignas(8) char head[4096] = {};
  const long n = sys::call(SYS_read, file.fd, head, sizeof head - 1);
  if (n > 2 && head[0] == '#' && head[1] == '!') {
    const char* from = head + 2 + std::strspn(head + 2, " \t");
    const std::size_t length = std::strcspn(from, " \t\n");
    char interpreter[512];
    if (depth > 3 || length == 0 || length >= sizeof interpreter) return false;
    std::memcpy(interpreter, from, length);
    interpreter[length] = 0;
    return is_loaded_by_linker(interpreter, depth + 1);
  }
  Elf64_Ehdr elf;
  std::memcpy(&elf, head, sizeof elf);
  if (n < static_cast<long>(sizeof elf) || std::memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0 ||
      elf.e_ident[EI_CLASS] != ELFCLASS64) {
    return false;
  }
  for (unsigned i = 0; i < elf.e_phnum; ++i) {
    Elf64_Phdr part;
    const std::uint64_t at = elf.e_phoff + std::uint64_t{i} * sizeof part;
    if (elf.e_phoff > sizeof head || at + sizeof part > static_cast<std::uint64_t>(n)) return false;
    std::memcpy(&part, head + at, sizeof part);
    if (part.p_type == PT_INTERP) return true;
  }
  return false;
}

// The file would stay behind. After vfork it is the parent's.
void take_offer_back(int, Socket& s, void*) {
  if (s.offer_name.load(std::memory_order_relaxed) != 0) withdraw_offer(s);
}

// Connections, and their environment.
template <typename Call>
int exec_connected(const char* path, char* const* environment, Call&& call) {
  static Inheritance list;  // after exec nobody else needs it; after vfork the parent waits
  list.used = 0;
  bool any = false;
  for_each_socket([](int, Socket&, void* found) { *static_cast<bool*>(found) = true; }, &any);
  if (!any) return call(environment);
  if (!in_borrowed_memory()) for_each_socket(take_offer_back, nullptr);
  if (!names_us(environment) || !is_loaded_by_linker(path, 0)) {
    for_each_socket(take_back, nullptr);
    return call(environment);
  }
  for_each_socket(hand_on, &list);
  if (list.used == 0) return call(environment);
  std::size_t count = 0;
  while (environment != nullptr && environment[count] != nullptr) ++count;
  char variable[sizeof kInherited + sizeof list.text + 1];
  std::snprintf(variable, sizeof variable, "%s=%s", kInherited, list.text);
  auto** with = static_cast<char**>(alloca((count + 2) * sizeof(char*)));
  for (std::size_t i = 0; i < count; ++i) with[i] = environment[i];
  with[count] = variable;
  with[count + 1] = nullptr;
  const int rc = call(static_cast<char* const*>(with));
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

// The names of AF_CLAN sockets; who does not load us takes no notice.
template <typename Call>
int exec(const char* path, char* const* environment, Call&& call) {
  char* variable = af_clan_used.load(std::memory_order_relaxed) ? af_clan_inheritance() : nullptr;
  if (variable == nullptr) return exec_connected(path, environment, call);
  std::size_t count = 0;
  while (environment != nullptr && environment[count] != nullptr) ++count;
  auto** with = static_cast<char**>(alloca((count + 2) * sizeof(char*)));
  for (std::size_t i = 0; i < count; ++i) with[i] = environment[i];
  with[count] = variable;
  with[count + 1] = nullptr;
  return exec_connected(path, with, call);
}

int exec_path(const char* path, char* const* arguments, char* const* environment) {
  return exec(path, environment,
              [&](char* const* with) { return real().execve(path, arguments, with); });
}

// As the shell finds programs: along PATH, and by the shell when it is a script without a first line.
int exec_searched(const char* file, char* const* arguments, char* const* environment) {
  auto run = [&](const char* path) {
    const int rc = exec_path(path, arguments, environment);
    if (errno != ENOEXEC) return rc;
    std::size_t count = 0;
    while (arguments[count] != nullptr) ++count;
    auto** script = static_cast<char**>(alloca((count + 2) * sizeof(char*)));
    char shell[] = "/bin/sh";
    script[0] = shell;
    script[1] = const_cast<char*>(path);
    for (std::size_t i = 1; i <= count; ++i) script[i + 1] = arguments[i];
    if (count == 0) script[2] = nullptr;
    return exec_path(shell, script, environment);
  };
  if (*file == 0) {
    errno = ENOENT;
    return -1;
  }
  if (std::strchr(file, '/') != nullptr) return run(file);
  const char* path = std::getenv("PATH");
  if (path == nullptr) path = "/bin:/usr/bin";
  bool denied = false;
  for (;;) {
    const std::size_t length = std::strcspn(path, ":");
    char candidate[4096];
    const int n = std::snprintf(candidate, sizeof candidate, "%.*s%s%s", static_cast<int>(length), path,
                                length > 0 ? "/" : "", file);
    if (n > 0 && static_cast<std::size_t>(n) < sizeof candidate) {
      if (sys::call(SYS_faccessat, AT_FDCWD, candidate, X_OK) == 0) {
        run(candidate);
        if (errno != EACCES && errno != ENOENT && errno != ENOTDIR) return -1;
      }
      denied |= errno == EACCES;
    }
    if (path[length] == 0) break;
    path += length + 1;
  }
  errno = denied ? EACCES : ENOENT;
  return -1;
}

// What execl() and its kin were called with, as execv() wants it.
struct Arguments {
  char** list = nullptr;
  char* const* environment = nullptr;
};

#define CLAN_COLLECT(first, with_environment, to)                                  \
  std::size_t count = 1;                                                           \
  va_list varied;                                                                  \
  va_start(varied, first);                                                         \
  while (va_arg(varied, char*) != nullptr) ++count;                                \
  va_end(varied);                                                                  \
  (to).list = static_cast<char**>(alloca((count + 1) * sizeof(char*)));            \
  va_start(varied, first);                                                         \
  (to).list[0] = const_cast<char*>(first);                                         \
  for (std::size_t i = 1; i <= count; ++i) (to).list[i] = va_arg(varied, char*);   \
  if (with_environment) (to).environment = va_arg(varied, char* const*);           \
  va_end(varied)

__attribute__((constructor)) void start() {
  note_process();
  // Nothing more: a program without TCP connections pays for this only.
  ::pthread_atfork(before_fork, in_parent, in_child);
  if (std::getenv(kInherited) != nullptr) take_over();
  af_clan_take_over();
}

__attribute__((destructor)) void end() { at_exit(); }

}  // namespace

CLAN_INTERPOSE void _exit(int status) {
  at_exit();
  real()._exit(status);
  __builtin_unreachable();
}
CLAN_INTERPOSE void _Exit(int status) { ::_exit(status); }

CLAN_INTERPOSE int execve(const char* path, char* const* arguments, char* const* environment) {
  return exec_path(path, arguments, environment);
}
CLAN_INTERPOSE int execv(const char* path, char* const* arguments) {
  return exec_path(path, arguments, environ);
}
CLAN_INTERPOSE int execvp(const char* file, char* const* arguments) {
  return exec_searched(file, arguments, environ);
}
CLAN_INTERPOSE int execvpe(const char* file, char* const* arguments, char* const* environment) {
  return exec_searched(file, arguments, environment);
}
CLAN_INTERPOSE int execl(const char* path, const char* first, ...) {
  Arguments a;
  CLAN_COLLECT(first, false, a);
  return exec_path(path, a.list, environ);
}
CLAN_INTERPOSE int execlp(const char* file, const char* first, ...) {
  Arguments a;
  CLAN_COLLECT(first, false, a);
  return exec_searched(file, a.list, environ);
}
CLAN_INTERPOSE int execle(const char* path, const char* first, ...) {
  Arguments a;
  CLAN_COLLECT(first, true, a);
  return exec_path(path, a.list, a.environment);
}
CLAN_INTERPOSE int fexecve(int fd, char* const* arguments, char* const* environment) {
  char path[40];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return exec(path, environment, [&](char* const* with) { return real().fexecve(fd, arguments, with); });
}

CLAN_INTERPOSE int execveat(int directory, const char* path, char* const* arguments, char* const* environment,
                            int flags) noexcept {
  char from[4200];
  if (path == nullptr || path[0] == '/' || (directory == AT_FDCWD && path[0] != 0)) {
    std::snprintf(from, sizeof from, "%s", path != nullptr ? path : "");
  } else {
    std::snprintf(from, sizeof from, "/proc/self/fd/%d%s%s", directory, path[0] != 0 ? "/" : "", path);
  }
  return exec(from, environment, [&](char* const* with) {
    return static_cast<int>(sys::call(SYS_execveat, directory, path, arguments, with, flags));
  });
}

// The C library makes these children by itself: nothing can be handed on.
CLAN_INTERPOSE int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                               const posix_spawnattr_t* attributes, char* const* arguments,
                               char* const* environment) {
  for_each_socket(take_back, nullptr);
  return real().posix_spawn(pid, path, actions, attributes, arguments, environment);
}
CLAN_INTERPOSE int posix_spawnp(pid_t* pid, const char* file, const posix_spawn_file_actions_t* actions,
                                const posix_spawnattr_t* attributes, char* const* arguments,
                                char* const* environment) {
  for_each_socket(take_back, nullptr);
  return real().posix_spawnp(pid, file, actions, attributes, arguments, environment);
}
CLAN_INTERPOSE int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t* actions, int fd, int to) {
  leave_pipe(fd, true);  // it will be open in the child, whatever its FD_CLOEXEC
  return real().posix_spawn_file_actions_adddup2(actions, fd, to);
}
CLAN_INTERPOSE int system(const char* command) {
  for_each_socket(take_back, nullptr);
  return real().system(command);
}
CLAN_INTERPOSE FILE* popen(const char* command, const char* mode) {
  for_each_socket(take_back, nullptr);
  return real().popen(command, mode);
}

CLAN_INTERPOSE int fclose(FILE* stream) {
  if (stream != nullptr) {
    const int fd = ::fileno(stream);
    if (fd >= 0) {
      // What is buffered goes out by write() of ours only if it is ours to write: see fdopen.
      forget_epoll(fd);
      if (is_af_clan(fd)) forget_af_clan(fd);
      if (hold(fd)) {
        const int rc = std::fflush(stream);
        forget(fd);
        return real().fclose(stream) != 0 ? EOF : rc;
      }
    }
  }
  return real().fclose(stream);
}

// Rings are files for this limit, too: making one, or taking bytes back out of it, would be SIGXFSZ.
CLAN_INTERPOSE int prlimit(pid_t pid, __rlimit_resource resource, const rlimit* limit, rlimit* old) noexcept {
  const bool ours = pid == 0 || pid == ::getpid();
  if (ours && resource == RLIMIT_FSIZE && limit != nullptr && limit->rlim_cur < kFileBytes) enter_sandbox();
  return static_cast<int>(sys::call(SYS_prlimit64, pid, resource, limit, old));
}
CLAN_INTERPOSE int prlimit64(pid_t pid, __rlimit_resource resource, const rlimit64* limit,
                             rlimit64* old) noexcept {
  return prlimit(pid, resource, reinterpret_cast<const rlimit*>(limit), reinterpret_cast<rlimit*>(old));
}
CLAN_INTERPOSE int setrlimit(__rlimit_resource_t resource, const rlimit* limit) noexcept {
  return prlimit(0, static_cast<__rlimit_resource>(resource), limit, nullptr);
}
CLAN_INTERPOSE int setrlimit64(__rlimit_resource_t resource, const rlimit64* limit) noexcept {
  return setrlimit(resource, reinterpret_cast<const rlimit*>(limit));
}

CLAN_INTERPOSE int prctl(int option, ...) {
  va_list list;
  va_start(list, option);
  unsigned long a[4];
  for (unsigned long& argument : a) argument = va_arg(list, unsigned long);
  va_end(list);
  if (option == PR_SET_SECCOMP) enter_sandbox();
  return static_cast<int>(sys::call(SYS_prctl, option, a[0], a[1], a[2], a[3]));
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
    case SYS_seccomp:
      if (a[0] == SECCOMP_SET_MODE_STRICT || a[0] == SECCOMP_SET_MODE_FILTER) enter_sandbox();
      break;
    case SYS_prctl:
      if (a[0] == PR_SET_SECCOMP) enter_sandbox();
      break;
    case SYS_io_uring_setup:
      return ring_setup(static_cast<unsigned>(a[0]), p1);
    case SYS_io_uring_register:
      return ring_register(fd, static_cast<unsigned>(a[1]), reinterpret_cast<void*>(a[2]),
                           static_cast<unsigned>(a[3]));
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
    case SYS_select:
      return ::select(fd, static_cast<fd_set*>(p1), reinterpret_cast<fd_set*>(a[2]),
                      reinterpret_cast<fd_set*>(a[3]), reinterpret_cast<timeval*>(a[4]));
    case SYS_epoll_wait:
      return ::epoll_wait(fd, static_cast<epoll_event*>(p1), static_cast<int>(a[2]),
                          static_cast<int>(a[3]));
#endif
    default:
      break;
  }
  return real().syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
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

namespace {

// `flag`: of the fortified functions, -1 for the plain ones.
int print(int fd, int flag, const char* format, va_list list) {
  if (flag < 0 && !hold(fd)) return real().vdprintf(fd, format, list);
  char* text = nullptr;
  const int n = flag < 0 ? ::vasprintf(&text, format, list) : ::__vasprintf_chk(&text, flag, format, list);
  if (n < 0) return -1;
  const ssize_t written = cookie_write(reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), text,
                                       static_cast<std::size_t>(n));
  KeepErrno keep;
  std::free(text);
  return written == n ? n : -1;
}

}  // namespace

CLAN_INTERPOSE int vdprintf(int fd, const char* format, va_list list) { return print(fd, -1, format, list); }
CLAN_INTERPOSE int __vdprintf_chk(int fd, int flag, const char* format, va_list list) {
  return print(fd, flag, format, list);
}
CLAN_INTERPOSE int dprintf(int fd, const char* format, ...) {
  va_list list;
  va_start(list, format);
  const int n = print(fd, -1, format, list);
  va_end(list);
  return n;
}
CLAN_INTERPOSE int __dprintf_chk(int fd, int flag, const char* format, ...) {
  va_list list;
  va_start(list, format);
  const int n = print(fd, flag, format, list);
  va_end(list);
  return n;
}
