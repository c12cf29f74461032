#include "clan/detail/log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "clan/detail/system_call.h"

namespace clan {
namespace {

constexpr const char* kNames[] = {"off", "error", "warn", "info", "debug"};

// The level that `wanted` names, -1 if it names none.
int level_named(const char* wanted) {
  if (wanted == nullptr || *wanted == '\0') return 0;
  for (int i = 0; i <= 4; ++i) {
    if (std::strcmp(wanted, kNames[i]) == 0) return i;
  }
  return -1;
}

// What descriptor 2 names.
struct Named {
  bool open = false;
  dev_t device = 0, special = 0;
  ino_t inode = 0;
  mode_t mode = 0;
  bool operator==(const Named&) const = default;
};
Named named_by_2() {
  struct stat st {};
  if (sys::fstat(2, &st) != 0) return {};
  return {true, st.st_dev, st.st_rdev, st.st_ino, st.st_mode & S_IFMT};
}

// As it was at the first question, which is when the library is loaded.
const Named& standard_error() {
  static const Named at_start = named_by_2();
  return at_start;
}
__attribute__((constructor)) void note_standard_error() {
  const int saved = errno;
  (void)standard_error();
  errno = saved;
}

// A file opened for appending, as daemons open their log, still is one.
bool is_log(const Named& now) {
  return now.mode == S_IFREG && (sys::call(SYS_fcntl, 2, F_GETFL) & O_APPEND) != 0;
}

// Writes without SIGPIPE: a reader that has gone must not end the program.
void write_quietly(const char* line, std::size_t length) {
  constexpr std::size_t kSetBytes = 8;  // the kernel's
  const std::uint64_t pipe = std::uint64_t{1} << (SIGPIPE - 1);
  std::uint64_t before = 0, pending = 0;
  const timespec at_once{};
  sys::call(SYS_rt_sigprocmask, SIG_BLOCK, &pipe, &before, kSetBytes);
  sys::call(SYS_rt_sigpending, &pending, kSetBytes);
  if (sys::call(SYS_write, 2, line, length) < 0 && errno == EPIPE && (pending & pipe) == 0)
    sys::call(SYS_rt_sigtimedwait, &pipe, nullptr, &at_once, kSetBytes);
  sys::call(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, kSetBytes);
}

}  // namespace

LogLevel log_level() {
  static std::atomic<int> cached{-1};
  // relaxed: every thread computes the same value
  int level = cached.load(std::memory_order_relaxed);
  if (level < 0) {
    const char* wanted = std::getenv("CLAN_LOG");
    const int named = level_named(wanted);
    level = std::max(named, 0);
    int unknown = -1;
    // The thread that stores it first is the one to complain.
    if (cached.compare_exchange_strong(unknown, level, std::memory_order_relaxed) && named < 0) {
      log_line(LogLevel::kWarn,
               "CLAN_LOG=%.64s is not understood: say off, error, warn, info or debug", wanted);
    }
  }
  return static_cast<LogLevel>(level);
}

void log_line(LogLevel level, const char* format, ...) {
  int saved = errno;
  char line[512];
  int n = std::snprintf(line, sizeof line, "clan[%d] %s: ", static_cast<int>(::getpid()),
                        kNames[static_cast<int>(level)]);
  va_list arguments;
  va_start(arguments, format);
  n += std::vsnprintf(line + n, sizeof line - static_cast<std::size_t>(n), format, arguments);
  va_end(arguments);
  std::size_t length = std::min(static_cast<std::size_t>(std::max(n, 0)), sizeof line - 2);
  line[length] = '\n';
  // Whatever else has got the number is the program's data.
  const Named now = named_by_2();
  if (now.open && (now == standard_error() || is_log(now))) {
    const bool may_signal = now.mode == S_IFIFO || now.mode == S_IFSOCK;
    may_signal ? write_quietly(line, length + 1) : (void)sys::call(SYS_write, 2, line, length + 1);
  }
  errno = saved;
}

}  // namespace clan
