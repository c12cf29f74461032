// Log lines for people: off unless CLAN_LOG asks (error, warn, info, debug; the default is off,
// because these libraries live inside other people's programs and must not write to their stderr).
//
// Callable from any thread; formats into a stack buffer and writes with one system call.
#pragma once

#include <clan/detail/export.h>

namespace clan {

enum class LogLevel { kOff = 0, kError = 1, kWarn = 2, kInfo = 3, kDebug = 4 };

/// The level asked for by CLAN_LOG, read once. An invalid value means off, and is reported on
/// descriptor 2.
CLAN_EXPORT LogLevel log_level();

/// Writes one line "clan[pid] level: text" to descriptor 2, if that names what it did when the
/// library was loaded. Keeps errno, and raises no SIGPIPE.
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
