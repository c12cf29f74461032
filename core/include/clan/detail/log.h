// Log lines for people: off unless CLAN_LOG asks (error, warn, info, debug), as these libraries
// live in other people's programs. Any thread; formats on the stack, writes with one system call.
#pragma once

#include <clan/detail/export.h>

namespace clan {

enum class LogLevel { kOff = 0, kError = 1, kWarn = 2, kInfo = 3, kDebug = 4 };

/// Returns CLAN_LOG's level, read once. An invalid one means off, and is reported on descriptor 2.
CLAN_EXPORT LogLevel log_level();

/// Writes a line "clan[pid] level: text" to descriptor 2, if that is still what it was when the
/// library was loaded. Keeps errno; raises no SIGPIPE.
CLAN_EXPORT void log_line(LogLevel level, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

}  // namespace clan

#define CLAN_LOG_AT(level, ...)                                                 \
  do {                                                                          \
    if (::clan::log_level() >= (level)) ::clan::log_line((level), __VA_ARGS__); \
  } while (0)
#define CLAN_WARN(...) CLAN_LOG_AT(::clan::LogLevel::kWarn, __VA_ARGS__)
#define CLAN_INFO(...) CLAN_LOG_AT(::clan::LogLevel::kInfo, __VA_ARGS__)
#define CLAN_DEBUG(...) CLAN_LOG_AT(::clan::LogLevel::kDebug, __VA_ARGS__)
