#include "config.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <atomic>

#include "clan/log.h"
#include "clan/shared_directory.h"
#include "real.h"

namespace clan::preload {
namespace {

Config the_config;
std::atomic<int> state{0};  // 0 unread, 1 being read, 2 read

// "80,443,8000-8010"
bool parse_ports(const char* text, Ports* ports) {
  for (const char* at = text; *at != 0;) {
    char* end = nullptr;
    const unsigned long first = std::strtoul(at, &end, 10);
    unsigned long last = first;
    if (end == at) return false;
    if (*end == '-') {
      at = end + 1;
      last = std::strtoul(at, &end, 10);
      if (end == at) return false;
    }
    if (first > last || last > 65535 || ports->count == Ports::kMost) return false;
    ports->ranges[ports->count++] = {static_cast<std::uint16_t>(first), static_cast<std::uint16_t>(last)};
    if (*end == ',') ++end;
    at = end;
  }
  return true;
}

bool parse_uids(const char* text, Config* config) {
  for (const char* at = text; *at != 0;) {
    char* end = nullptr;
    constexpr unsigned long kMostUid = 0xffff'fffeu;
    const unsigned long uid = std::strtoul(at, &end, 10);
    if (*at < '0' || *at > '9' || uid > kMostUid || config->uid_count == 16) return false;
    config->uids[config->uid_count++] = static_cast<uid_t>(uid);
    if (*end == ',') ++end;
    at = end;
  }
  return true;
}

// Without a directory that can be used, connections between network namespaces stay on TCP; all others move.
void take_directory(const char* path, const char* where) {
  the_config.directory[0] = 0;
  if (const char* why = why_not_shared_directory(path); why != nullptr) {
    log_line(LogLevel::kError, "%s: CLAN_DIR=%s %s; connections to other network namespaces stay on TCP",
             where, path, why);
    return;
  }
  std::size_t size = std::strlen(path);
  while (size > 1 && path[size - 1] == '/') --size;
  std::memcpy(the_config.directory, path, size);
  the_config.directory[size] = 0;
}

void apply(const char* name, const char* value, const char* where) {
  bool good = true;
  if (std::strcmp(name, "CLAN_DISABLE") == 0) {
    the_config.disabled = *value != 0 && std::strcmp(value, "0") != 0;
  } else if (std::strcmp(name, "CLAN_ONLY") == 0) {
    the_config.only.count = 0;
    good = parse_ports(value, &the_config.only);
  } else if (std::strcmp(name, "CLAN_EXCEPT") == 0) {
    the_config.except.count = 0;
    good = parse_ports(value, &the_config.except);
  } else if (std::strcmp(name, "CLAN_UIDS") == 0) {
    the_config.uid_count = 0;
    good = parse_uids(value, &the_config);
  } else if (std::strcmp(name, "CLAN_DIR") == 0) {
    take_directory(value, where);
  } else {
    good = false;
  }
  if (!good) {
    // What cannot be understood must not accelerate what it meant to leave alone.
    the_config.disabled = true;
    log_line(LogLevel::kError,
             "%s: \"%s=%s\" is not understood, so CLAN leaves all connections to the kernel; ports are "
             "written like 80,8000-8010, user ids like 1000,1001",
             where, name, value);
  }
}

// Lines "CLAN_ONLY=80", "# comment".
void read_file(const char* path) {
  const int fd = static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC));
  if (fd < 0) {
    the_config.disabled = true;
    log_line(LogLevel::kError,
             "CLAN_CONFIG names %s, which cannot be read (%s), so CLAN leaves all connections to the kernel",
             path, std::strerror(errno));
    return;
  }
  static char text[8192];
  const long n = sys::call(SYS_read, fd, text, sizeof text);
  const int error = errno;
  sys::close(fd);
  if (n < 0 || n == sizeof text) {
    the_config.disabled = true;
    log_line(LogLevel::kError,
             "CLAN_CONFIG names %s, which cannot be read (%s), so CLAN leaves all connections to the kernel",
             path, n < 0 ? std::strerror(error) : "it has more than 8191 bytes");
    return;
  }
  text[n] = 0;
  for (char* line = text; line != nullptr && *line != 0;) {
    char* next = std::strchr(line, '\n');
    if (next != nullptr) *next++ = 0;
    while (*line == ' ' || *line == '\t') ++line;
    char* equals = std::strchr(line, '=');
    if (*line != 0 && *line != '#') {
      if (equals != nullptr) {
        *equals = 0;
        char* end = equals + 1 + std::strlen(equals + 1);
        while (end > equals + 1 && (end[-1] == ' ' || end[-1] == '\r' || end[-1] == '\t')) *--end = 0;
        apply(line, equals + 1, path);
      } else {
        apply(line, "", path);
      }
    }
    line = next;
  }
}

void read() {
  // The environment wins over the file.
  if (const char* path = std::getenv("CLAN_CONFIG"); path != nullptr && *path != 0) read_file(path);
  for (const char* name : {"CLAN_ONLY", "CLAN_EXCEPT", "CLAN_UIDS", "CLAN_DIR", "CLAN_DISABLE"}) {
    if (const char* value = std::getenv(name); value != nullptr && *value != 0) {
      apply(name, value, "environment");
    }
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < kFileBytes) {
    the_config.disabled = true;
    CLAN_INFO("the limit of file sizes (ulimit -f) is too small for shared memory; connections stay on TCP");
  }
}

}  // namespace

bool Ports::contains(std::uint16_t port) const {
  for (int i = 0; i < count; ++i) {
    if (port >= ranges[i].first && port <= ranges[i].last) return true;
  }
  return false;
}

bool Config::allows_ports(std::uint16_t local, std::uint16_t remote) const {
  if (except.contains(local) || except.contains(remote)) return false;
  return only.count == 0 || only.contains(local) || only.contains(remote);
}

bool Config::allows_uid(uid_t uid) const {
  if (uid == ::geteuid()) return true;
  for (int i = 0; i < uid_count; ++i) {
    if (uids[i] == uid) return true;
  }
  return false;
}

const Config& config() {
  int expected = 0;
  if (state.load(std::memory_order_acquire) != 2) {  // PAIR preload.config
    if (state.compare_exchange_strong(expected, 1, std::memory_order_acquire)) {
      KeepErrno keep;
      read();
      state.store(2, std::memory_order_release);  // PAIR preload.config
    } else {
      while (state.load(std::memory_order_acquire) != 2) sched_yield();  // PAIR preload.config
    }
  }
  return the_config;
}

void disable() {
  (void)config();
  the_config.disabled = true;
}

}  // namespace clan::preload
