// Programs that are executed: their connections go back to TCP.
#include "share/exec.h"

#include <alloca.h>
#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "af_clan/af_clan_table.h"
#include "calls/interpose.h"
#include "demote/demote.h"
#include "demote/resend.h"
#include "os/memory_owner.h"
#include "os/real.h"
#include "os/sys.h"
#include "share/loader.h"

using namespace clan::preload;

namespace {

// Calls `call` with the environment, without the library if the program needs that, and with `more`
// unless it is null.
template <typename Call>
int call_for(const char* path, char* const* environment, Call&& call, char* more = nullptr) {
  const bool without = must_do_without_us(path, environment);
  if (!without && more == nullptr) return call(environment);
  std::size_t count = 0;
  while (environment != nullptr && environment[count] != nullptr) ++count;
  auto** with = static_cast<char**>(alloca((count + 2) * sizeof(char*)));
  std::size_t used = 0;
  for (std::size_t i = 0; i < count; ++i) {
    with[used++] = environment[i];
    if (!without || !is_preload(environment[i])) continue;
    auto* text = static_cast<char*>(alloca(std::strlen(environment[i]) + 1));
    with[used - 1] = text;
    if (!without_us(environment[i], text)) --used;
  }
  if (more != nullptr) with[used++] = more;
  with[used] = nullptr;
  return call(static_cast<char* const*>(with));
}

template <typename Call>
int exec(const char* path, char* const* environment, Call&& call) {
  if (!in_borrowed_memory()) finish_resends();
  // relaxed: of this thread
  char* names = af_clan_used.load(std::memory_order_relaxed) ? af_clan_inheritance() : nullptr;
  before_exec();
  const int rc = call_for(path, environment, call, names);
  KeepErrno keep;
  use_slots_again();
  return rc;
}

// Finds what execvp() would probably execute. `to`: room for a path.
template <std::size_t kRoom>
const char* found_along_path(const char* file, char (&to)[kRoom]) {
  if (*file == 0 || std::strchr(file, '/') != nullptr) return file;
  const char* path = std::getenv("PATH");
  for (const char* at = path != nullptr ? path : "/bin:/usr/bin";; ++at) {
    const std::size_t length = std::strcspn(at, ":");
    const int n = std::snprintf(to, kRoom, "%.*s%s%s", static_cast<int>(length), at,
                                length > 0 ? "/" : "", file);
    if (n > 0 && static_cast<std::size_t>(n) < kRoom &&
        sys::call(SYS_faccessat, AT_FDCWD, to, X_OK) == 0)
      return to;
    at += length;
    if (*at == 0) return file;
  }
}

int exec_path(const char* path, char* const* arguments, char* const* environment) {
  return exec(path, environment,
              [&](char* const* with) { return real().execve(path, arguments, with); });
}

int exec_searched(const char* file, char* const* arguments, char* const* environment) {
  char found[4096];
  return exec(found_along_path(file, found), environment,
              [&](char* const* with) { return real().execvpe(file, arguments, with); });
}

// The C library's header says that it is not null, so compilers drop the check; a program may still
// pass null, for which the kernel returns EFAULT.
const char* as_given(const char* path) {
  asm("" : "+r"(path));
  return path;
}

// Collects the arguments of execl() and its kin in `list`, and execle()'s environment.
#define CLAN_COLLECT(first, with_environment)                                                 \
  std::size_t count = 1;                                                                      \
  va_list varied;                                                                             \
  va_start(varied, first);                                                                    \
  while (va_arg(varied, char*) != nullptr) ++count;                                           \
  va_end(varied);                                                                             \
  auto** const list = static_cast<char**>(alloca((count + 1) * sizeof(char*)));               \
  va_start(varied, first);                                                                    \
  list[0] = const_cast<char*>(first);                                                         \
  for (std::size_t i = 1; i <= count; ++i) list[i] = va_arg(varied, char*);                   \
  char* const* const environment = with_environment ? va_arg(varied, char* const*) : environ; \
  va_end(varied)

}  // namespace

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
  CLAN_COLLECT(first, false);
  return exec_path(path, list, environment);
}
CLAN_INTERPOSE int execlp(const char* file, const char* first, ...) {
  CLAN_COLLECT(first, false);
  return exec_searched(file, list, environment);
}
CLAN_INTERPOSE int execle(const char* path, const char* first, ...) {
  CLAN_COLLECT(first, true);
  return exec_path(path, list, environment);
}
CLAN_INTERPOSE int fexecve(int fd, char* const* arguments, char* const* environment) {
  char path[40];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return exec(path, environment,
              [&](char* const* with) { return real().fexecve(fd, arguments, with); });
}

CLAN_INTERPOSE int execveat(int directory, const char* path, char* const* arguments,
                            char* const* environment, int flags) noexcept {
  char from[4200];
  const char* const name = as_given(path);
  if (name == nullptr || name[0] == '/' || (directory == AT_FDCWD && name[0] != 0)) {
    std::snprintf(from, sizeof from, "%s", name != nullptr ? name : "");
  } else {
    std::snprintf(from, sizeof from, "/proc/self/fd/%d%s%s", directory, name[0] != 0 ? "/" : "",
                  name);
  }
  return exec(from, environment, [&](char* const* with) {
    return static_cast<int>(sys::call(SYS_execveat, directory, path, arguments, with, flags));
  });
}

// The C library makes these children by itself: they inherit nothing.
CLAN_INTERPOSE int posix_spawn(pid_t* pid, const char* path,
                               const posix_spawn_file_actions_t* actions,
                               const posix_spawnattr_t* attributes, char* const* arguments,
                               char* const* environment) {
  take_all_back();
  return call_for(path, environment, [&](char* const* with) {
    return real().posix_spawn(pid, path, actions, attributes, arguments, with);
  });
}
CLAN_INTERPOSE int posix_spawnp(pid_t* pid, const char* file,
                                const posix_spawn_file_actions_t* actions,
                                const posix_spawnattr_t* attributes, char* const* arguments,
                                char* const* environment) {
  take_all_back();
  char found[4096];
  return call_for(found_along_path(file, found), environment, [&](char* const* with) {
    return real().posix_spawnp(pid, file, actions, attributes, arguments, with);
  });
}
CLAN_INTERPOSE int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t* actions, int fd,
                                                    int to) {
  leave_pipe(fd, true, clan::reasons::Why::kExecuted);  // open in the child despite FD_CLOEXEC
  return real().posix_spawn_file_actions_adddup2(actions, fd, to);
}
CLAN_INTERPOSE int system(const char* command) {
  take_all_back();
  return real().system(command);
}
CLAN_INTERPOSE FILE* popen(const char* command, const char* mode) {
  take_all_back();
  return real().popen(command, mode);
}
