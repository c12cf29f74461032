// Programs that are executed: what they find of our connections, and whether they can make use of it.
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
#include <initializer_list>
#include <utility>

#include "af_clan/af_clan.h"
#include "clan/log.h"
#include "share/process.h"
#include "os/real.h"
#include "os/sandbox.h"
#include "state/socket.h"

using namespace clan::preload;

namespace {

// What a program that is executed finds: "descriptor:pipe:end,…" of connections that go on in it.
constexpr char kInherited[] = "CLAN_INHERITED";

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
  if (fd <= STDERR_FILENO || !s.shared() || s.resending.load() || s.pipe.memfd() < 0 ||
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

enum class Loader {
  kLoadsUs,   ///< the C library's: a dynamically linked program of this machine without privileges of its own
  kCannot,    ///< another C library's (musl), which does not start a program behind a library that is not its
              ///< own
  kLeavesUs,  ///< there is none, or it takes nothing from LD_PRELOAD
};

// By the name of a program's interpreter, in its file.
Loader loader_named(int file, const Elf64_Phdr& part) {
  char name[512];
  const std::size_t length =
      part.p_filesz < sizeof name ? static_cast<std::size_t>(part.p_filesz) : sizeof name - 1;
  const long n = sys::call(SYS_pread64, file, name, length, part.p_offset);
  name[n > 0 ? n : 0] = 0;
  return std::strstr(name, "/ld-musl-") != nullptr ? Loader::kCannot : Loader::kLoadsUs;
}

// Of a program, or of the one that a script is for.
Loader loader_of(const char* path, int depth) {
  struct Closed {
    int fd;
    ~Closed() {
      if (fd >= 0) sys::close(fd);
    }
  } file{static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC))};
  struct stat st {};
  if (file.fd < 0 || sys::fstat(file.fd, &st) != 0 || (st.st_mode & (S_ISUID | S_ISGID)) != 0)
    return Loader::kLeavesUs;
  if (::fgetxattr(file.fd, "security.capability", nullptr, 0) >= 0) return Loader::kLeavesUs;
  alignas(8) char head[4096] = {};
  const long n = sys::call(SYS_read, file.fd, head, sizeof head - 1);
  if (n > 2 && head[0] == '#' && head[1] == '!') {
    const char* from = head + 2 + std::strspn(head + 2, " \t");
    const std::size_t length = std::strcspn(from, " \t\n");
    char interpreter[512];
    if (depth > 3 || length == 0 || length >= sizeof interpreter) return Loader::kLeavesUs;
    std::memcpy(interpreter, from, length);
    interpreter[length] = 0;
    return loader_of(interpreter, depth + 1);
  }
  Elf64_Ehdr elf;
  std::memcpy(&elf, head, sizeof elf);
  if (n < static_cast<long>(sizeof elf) || std::memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0 ||
      elf.e_ident[EI_CLASS] != ELFCLASS64) {
    return Loader::kLeavesUs;
  }
  for (unsigned i = 0; i < elf.e_phnum; ++i) {
    Elf64_Phdr part;
    const std::uint64_t at = elf.e_phoff + std::uint64_t{i} * sizeof part;
    if (elf.e_phoff > sizeof head || at + sizeof part > static_cast<std::uint64_t>(n))
      return Loader::kLeavesUs;
    std::memcpy(&part, head + at, sizeof part);
    if (part.p_type == PT_INTERP) return loader_named(file.fd, part);
  }
  return Loader::kLeavesUs;
}

constexpr char kPreload[] = "LD_PRELOAD=";

bool is_preload(const char* variable) { return std::strncmp(variable, kPreload, sizeof kPreload - 1) == 0; }

// LD_PRELOAD without the library, into `to`, which has as much room. False: nothing else is in it.
bool without_us(const char* variable, char* to) {
  char* end = std::strcpy(to, kPreload) + sizeof kPreload - 1;
  for (const char* at = variable + sizeof kPreload - 1; *at != 0;) {
    const std::size_t length = std::strcspn(at, ": ");
    const char* name = at + length;
    while (name > at && name[-1] != '/') --name;
    const bool us = std::strncmp(name, "libclan-preload", sizeof "libclan-preload" - 1) == 0;
    if (length > 0 && !us) {
      if (end[-1] != '=') *end++ = ':';
      std::memcpy(end, at, length);
      end += length;
    }
    at += length + (at[length] != 0 ? 1 : 0);
  }
  *end = 0;
  return end[-1] != '=';
}

// The program cannot start with the library: it gets an environment without it.
bool must_do_without_us(const char* path, char* const* environment) {
  bool loads = false;
  for (char* const* at = environment; at != nullptr && *at != nullptr; ++at) {
    loads |= is_preload(*at) && std::strstr(*at, "libclan-preload") != nullptr;
  }
  KeepErrno keep;
  if (!loads || loader_of(path, 0) != Loader::kCannot) return false;
  CLAN_WARN("%s is linked with musl: it will run without CLAN", path);
  return true;
}

// `call` with an environment that has `more`, and not the library.
template <typename Call>
int call_with(char* const* environment, bool without, std::initializer_list<char*> more, Call&& call) {
  std::size_t count = 0;
  while (environment != nullptr && environment[count] != nullptr) ++count;
  auto** with = static_cast<char**>(alloca((count + more.size() + 1) * sizeof(char*)));
  std::size_t used = 0;
  for (std::size_t i = 0; i < count; ++i) {
    with[used++] = environment[i];
    if (!without || !is_preload(environment[i])) continue;
    auto* text = static_cast<char*>(alloca(std::strlen(environment[i]) + 1));
    with[used - 1] = text;
    if (!without_us(environment[i], text)) --used;
  }
  for (char* variable : more) {
    if (variable != nullptr) with[used++] = variable;
  }
  with[used] = nullptr;
  return call(static_cast<char* const*>(with));
}

// The file would stay behind. After vfork it is the parent's.
void take_offer_back(int, Socket& s, void*) {
  if (s.offer_name.load(std::memory_order_relaxed) != 0) withdraw_offer(s);
}

// Connections go on in the program, or go back to TCP. Returns the variable that tells it of them, or
// nullptr. Not for two threads at once: one of them would have no use for it.
char* hand_on_connections(const char* path, char* const* environment) {
  static Inheritance list;  // after exec nobody else needs it; after vfork the parent waits
  bool any = false;
  for_each_socket([](int, Socket&, void* found) { *static_cast<bool*>(found) = true; }, &any);
  if (!any) return nullptr;
  if (!in_borrowed_memory()) for_each_socket(take_offer_back, nullptr);
  if (!names_us(environment) || loader_of(path, 0) != Loader::kLoadsUs) {
    for_each_socket(take_back, nullptr);
    return nullptr;
  }
  list.used = static_cast<std::size_t>(std::snprintf(list.text, sizeof list.text, "%s=", kInherited));
  const std::size_t none = list.used;
  for_each_socket(hand_on, &list);
  return list.used > none ? list.text : nullptr;
}

// exec has failed: the pipes are ours alone again.
void take_pipe_back(int, Socket& s, void*) {
  if (s.shared() && s.pipe.memfd() >= 0) sys::fcntl(s.pipe.memfd(), F_SETFD, FD_CLOEXEC);
}

// `call` with an environment that tells of our connections and names. Who does not load us takes no notice.
template <typename Call>
int exec(const char* path, char* const* environment, Call&& call) {
  if (!in_borrowed_memory()) finish_resends();
  char* names = af_clan_used.load(std::memory_order_relaxed) ? af_clan_inheritance() : nullptr;
  char* connections = hand_on_connections(path, environment);
  const bool without = must_do_without_us(path, environment);
  if (names == nullptr && connections == nullptr && !without) return call(environment);
  const int rc = call_with(environment, without, {names, connections}, std::forward<Call>(call));
  KeepErrno keep;
  if (connections != nullptr) for_each_socket(take_pipe_back, nullptr);
  return rc;
}

// What execvp() would execute, as far as it goes without trying.
const char* find_program(const char* file, char* to, std::size_t size) {
  const char* path = std::getenv("PATH");
  if (std::strchr(file, '/') != nullptr || *file == 0) return file;
  for (const char* at = path != nullptr ? path : "/bin:/usr/bin";; ++at) {
    const std::size_t length = std::strcspn(at, ":");
    const int n =
        std::snprintf(to, size, "%.*s%s%s", static_cast<int>(length), at, length > 0 ? "/" : "", file);
    const bool fits = n > 0 && static_cast<std::size_t>(n) < size;
    if (fits && sys::call(SYS_faccessat, AT_FDCWD, to, X_OK) == 0) return to;
    at += length;
    if (*at == 0) return file;
  }
}

int exec_path(const char* path, char* const* arguments, char* const* environment) {
  return exec(path, environment, [&](char* const* with) { return real().execve(path, arguments, with); });
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

namespace clan::preload {

void take_over_connections() {
  const char* text = std::getenv(kInherited);
  if (text == nullptr) return;
  note_fork(false);  // whoever moved them had the filter of system calls, if there is one
  const char* const all = text;
  int fd, memfd, end, used;
  for (; std::sscanf(text, "%d:%d:%d,%n", &fd, &memfd, &end, &used) == 3; text += used) {
    // Duplicates name the same pipe: one of them was enough to open it, and has.
    int first = -1, pipe = -1, ignored, more;
    for (const char* at = all; at != text && pipe != memfd; at += more) {
      if (std::sscanf(at, "%d:%d:%d,%n", &first, &pipe, &ignored, &more) != 3) break;
    }
    pipe == memfd ? duplicate_entry(first, fd) : adopt_pipe(fd, memfd, end);
  }
  ::unsetenv(kInherited);
}

}  // namespace clan::preload

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
  const auto spawn = [&](char* const* with) {
    return real().posix_spawn(pid, path, actions, attributes, arguments, with);
  };
  return must_do_without_us(path, environment) ? call_with(environment, true, {}, spawn) : spawn(environment);
}
CLAN_INTERPOSE int posix_spawnp(pid_t* pid, const char* file, const posix_spawn_file_actions_t* actions,
                                const posix_spawnattr_t* attributes, char* const* arguments,
                                char* const* environment) {
  for_each_socket(take_back, nullptr);
  const auto spawn = [&](char* const* with) {
    return real().posix_spawnp(pid, file, actions, attributes, arguments, with);
  };
  char found[4096];
  const bool without = must_do_without_us(find_program(file, found, sizeof found), environment);
  return without ? call_with(environment, true, {}, spawn) : spawn(environment);
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
