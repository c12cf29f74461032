#include "base/log.h"

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

int level_from_environment() {
  const char* wanted = std::getenv("CLAN_LOG");
  if (wanted == nullptr) return 0;
  for (int i = 0; i <= 4; ++i) {
    if (std::strcmp(wanted, kNames[i]) == 0) return i;
  }
  return 0;
}

}  // namespace

LogLevel log_level() {
  static std::atomic<int> cached{-1};
  int level = cached.load(std::memory_order_relaxed);  // relaxed: every thread computes the same value
  if (level < 0) {
    level = level_from_environment();
    cached.store(level, std::memory_order_relaxed);
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
