#include "clan/log.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

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
  (void)!::write(2, line, length + 1);
  errno = saved;
}

}  // namespace clan
