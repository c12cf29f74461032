#include "os/config.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "clan/detail/log.h"
#include "os/sys.h"
#include "os/test_settings.h"

namespace clan::preload {
namespace {

constinit Config the_config;
std::atomic<int> state{0};  // 0 unread, 1 being read, 2 read

// The text of the settings file. Null: none is named, or `why_not` says why it cannot be read.
char* read_file(const char* path, const char** why_not) {
  static char text[kSettingsFile + 1];
  if (path == nullptr || *path == 0) return nullptr;
  const long n = sys::read_file(path, text, sizeof text);
  *why_not = n < 0                                   ? std::strerror(errno)
             : n == static_cast<long>(kSettingsFile) ? kSettingsFileTooLong
                                                     : nullptr;
  return *why_not == nullptr ? text : nullptr;
}

uid_t read_overflow_uid() {
  char text[32];
  (void)sys::read_file("/proc/sys/kernel/overflowuid", text, sizeof text);
  const long uid = std::strtol(text, nullptr, 10);
  return uid > 0 ? static_cast<uid_t>(uid) : 65534;
}

// As in the initial user namespace.
bool every_user_is_mapped() {
  char text[128];
  (void)sys::read_file("/proc/self/uid_map", text, sizeof text);
  unsigned inside = 1, outside = 1, count = 0;
  int used = 0;
  return std::sscanf(text, "%u %u %u %n", &inside, &outside, &count, &used) == 3 &&
         text[used] == 0 && inside == 0 && outside == 0 && count == 0xffff'ffffu;
}

void read() {
  (void)log_level();  // reports an invalid CLAN_LOG, even if there is nothing to log
  const char* path = std::getenv("CLAN_CONFIG");
  const char* why = nullptr;
  char* file = read_file(path, &why);
  if (why != nullptr) {
    log_line(
        LogLevel::kError,
        "environment: CLAN_CONFIG=%s cannot be read: %s; CLAN leaves all connections to the kernel",
        path, why);
  }
  const auto environment = [](const char* name) -> const char* { return std::getenv(name); };
  const auto say = [&](const WrongSetting& wrong) {
    complain(wrong, path, "CLAN leaves all connections to the kernel");
  };
  the_config.looks_at_key = false;  // not needed here, and this user may not be allowed to
  (void)take_settings(file, environment, &the_config, say);
  the_config.disabled = the_config.disable || why != nullptr;
  if (the_config.disable && why == nullptr) CLAN_INFO("CLAN_DISABLE; connections stay on TCP");
  read_test_settings();
  the_config.overflow_uid = read_overflow_uid();
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < kFileBytes) {
    the_config.disabled = true;
    CLAN_INFO(
        "the limit of file sizes (ulimit -f) is too small for shared memory; connections stay on "
        "TCP");
  }
}

}  // namespace

// Reads the map each time: a process can enter another user namespace.
bool Config::is_anybody(uid_t uid) const { return uid == overflow_uid && !every_user_is_mapped(); }

bool Config::allows_uid(uid_t uid) const {
  return (uid == ::geteuid() || names_uid(uid)) && !is_anybody(uid);
}

const Config& config() {
  int expected = 0;
  if (state.load(std::memory_order_acquire) != 2) {  // PAIR preload.config
    if (state.compare_exchange_strong(expected, 1, std::memory_order_acquire)) {
      KeepErrno keep;
      read();
      state.store(2, std::memory_order_release);  // PAIR preload.config: publishes the settings
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
