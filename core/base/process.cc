#include <fcntl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "clan/system_call.h"

namespace clan::sys {
namespace {

// /proc counts processes as our pid namespace does.
bool proc_is_ours() {
  char text[16];
  const long n = call(SYS_readlinkat, AT_FDCWD, "/proc/self", text, sizeof text - 1);
  text[n > 0 ? n : 0] = 0;
  return n > 0 && std::atoi(text) == static_cast<int>(call(SYS_getpid));
}

// By /proc/ID/stat, "ID (name) state …", whose 20th field is the number of threads.
bool has_died(pid_t id) {
  char path[32], text[512];
  std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(id));
  const int file = static_cast<int>(call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC));
  if (file < 0) return false;
  const long n = call(SYS_read, file, text, sizeof text - 1);
  sys::close(file);
  text[n > 0 ? n : 0] = 0;
  const char* at = std::strrchr(text, ')');
  if (at == nullptr || at[1] == 0 || (at[2] != 'Z' && at[2] != 'X')) return false;
  constexpr int kThreads = 20, kState = 3;
  at += 2;
  for (int field = kState; field < kThreads; ++field) {
    at = std::strchr(at, ' ');
    if (at == nullptr) return false;
    ++at;
  }
  return std::atoi(at) <= 1;  // else its first thread has ended, and others run
}

}  // namespace

bool exists(pid_t id) {
  if (call(SYS_kill, id, 0) != 0 && errno == ESRCH) return false;
  return !proc_is_ours() || !has_died(id);
}

}  // namespace clan::sys
