// Programs that are executed: connections that they have go back to TCP.
#include "share/exec.h"

#include <alloca.h>
#include <elf.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "af_clan/af_clan.h"
#include "calls/interpose.h"
#include "demote/demote.h"
#include "demote/resend.h"
#include "os/memory_owner.h"
#include "os/real.h"
#include "os/sys.h"
#include "share/loader.h"

using namespace clan::preload;

namespace {

// `call` with an environment that has `more`, unless it is null; `without`: and not the library.
template <typename Call>
int call_with(char* const* environment, bool without, char* more, Call&& call) {
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

// `call` with an environment that lists the names of AF_CLAN. A program that does not load us takes
// no notice.
template <typename Call>
int exec(const char* path, char* const* environment, Call&& call) {
  if (!in_borrowed_memory()) finish_resends();
  char* names = af_clan_used.load(std::memory_order_relaxed) ? af_clan_inheritance() : nullptr;
  before_exec();
  const bool without = must_do_without_us(path, environment);
  const int rc = names != nullptr || without ? call_with(environment, without, names, call)
                                             : call(environment);
  KeepErrno keep;
  use_slots_again();
  return rc;
}

// Calls `f(path)` with each place along PATH where execvp() looks for a program, until it returns
// true. `to`: room for one. False: it never has.
template <std::size_t kRoom, typename F>
bool along_path(const char* file, char (&to)[kRoom], F&& f) {
  const char* path = std::getenv("PATH");
  for (const char* at = path != nullptr ? path : "/bin:/usr/bin";; ++at) {
    const std::size_t length = std::strcspn(at, ":");
    const int n = std::snprintf(to, kRoom, "%.*s%s%s", static_cast<int>(length), at,
                                length > 0 ? "/" : "", file);
    if (n > 0 && static_cast<std::size_t>(n) < kRoom && f(to)) return true;
    at += length;
    if (*at == 0) return false;
  }
}

bool may_execute(const char* path) { return sys::call(SYS_faccessat, AT_FDCWD, path, X_OK) == 0; }

int exec_path(const char* path, char* const* arguments, char* const* environment) {
  return exec(path, environment,
              [&](char* const* with) { return real().execve(path, arguments, with); });
}

// As the shell finds programs: along PATH, and by the shell when it is a script without a first
// line.
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
  bool denied = false;
  char candidate[4096];
  const bool tried = along_path(file, candidate, [&](const char* path) {
    const bool may = may_execute(path);
    if (may) run(path);
    denied |= errno == EACCES;
    return may && errno != EACCES && errno != ENOENT && errno != ENOTDIR;
  });
  if (!tried) errno = denied ? EACCES : ENOENT;
  return -1;
}

// The C library's header promises that it is not null, and compilers leave out the look; a program
// may break the promise, and the kernel answers EFAULT.
const char* as_given(const char* path) {
  asm("" : "+r"(path));
  return path;
}

// What execl() and its kin were called with, as execv() wants it.
struct Arguments {
  char** list = nullptr;
  char* const* environment = nullptr;
};

#define CLAN_COLLECT(first, with_environment, to)                                \
  std::size_t count = 1;                                                         \
  va_list varied;                                                                \
  va_start(varied, first);                                                       \
  while (va_arg(varied, char*) != nullptr) ++count;                              \
  va_end(varied);                                                                \
  (to).list = static_cast<char**>(alloca((count + 1) * sizeof(char*)));          \
  va_start(varied, first);                                                       \
  (to).list[0] = const_cast<char*>(first);                                       \
  for (std::size_t i = 1; i <= count; ++i) (to).list[i] = va_arg(varied, char*); \
  if (with_environment) (to).environment = va_arg(varied, char* const*);         \
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
  const auto spawn = [&](char* const* with) {
    return real().posix_spawn(pid, path, actions, attributes, arguments, with);
  };
  return must_do_without_us(path, environment) ? call_with(environment, true, nullptr, spawn)
                                               : spawn(environment);
}
CLAN_INTERPOSE int posix_spawnp(pid_t* pid, const char* file,
                                const posix_spawn_file_actions_t* actions,
                                const posix_spawnattr_t* attributes, char* const* arguments,
                                char* const* environment) {
  take_all_back();
  const auto spawn = [&](char* const* with) {
    return real().posix_spawnp(pid, file, actions, attributes, arguments, with);
  };
  // What it would execute, as far as it goes without trying.
  char found[4096];
  const bool searches = std::strchr(file, '/') == nullptr && *file != 0;
  const char* const path = searches && along_path(file, found, may_execute) ? found : file;
  const bool without = must_do_without_us(path, environment);
  return without ? call_with(environment, true, nullptr, spawn) : spawn(environment);
}
CLAN_INTERPOSE int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t* actions, int fd,
                                                    int to) {
  leave_pipe(
      fd, true,
      clan::reasons::Why::kExecuted);  // it will be open in the child, whatever its FD_CLOEXEC
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
