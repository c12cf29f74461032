#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "clan/detail/system_call.h"

namespace clan::sys {

bool proc_is_ours() {
  char text[16];
  const long n = call(SYS_readlinkat, AT_FDCWD, "/proc/self", text, sizeof text - 1);
  text[n > 0 ? n : 0] = 0;
  return n > 0 && std::atoi(text) == static_cast<int>(call(SYS_getpid));
}

namespace {

// /proc/ID/stat is "ID (name) state …"; its 20th field is the number of threads.
bool has_died(pid_t id) {
  char path[32], text[512];
  std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(id));
  (void)read_file(path, text, sizeof text);
  const char* at = std::strrchr(text, ')');
  if (at == nullptr || at[1] == 0 || (at[2] != 'Z' && at[2] != 'X')) return false;
  constexpr int kName = 2, kThreads = 20;
  for (int field = kName; field < kThreads; ++field) {
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

namespace {

std::atomic<std::uint32_t> the_pid_namespace{0};

}  // namespace

std::uint32_t pid_namespace() {
  // relaxed: a number by itself; a thread that finds none asks again
  std::uint32_t known = the_pid_namespace.load(std::memory_order_relaxed);
  if (known != 0) return known;
  const int saved_errno = errno;
  struct stat st {};
  if (call(SYS_newfstatat, AT_FDCWD, "/proc/self/ns/pid", &st, 0) == 0)
    known = static_cast<std::uint32_t>(st.st_ino);
  errno = saved_errno;
  the_pid_namespace.store(known, std::memory_order_relaxed);  // relaxed: a number by itself
  return known;
}

std::uint32_t name_of(std::uint32_t thread) {
  return thread | (pid_namespace() << 23 & kNamespaceBits);
}

bool is_of_another_namespace(std::uint32_t name) {
  return ((name ^ name_of(0)) & kNamespaceBits) != 0;
}

bool has_ended(std::uint32_t name) {
  const auto thread = static_cast<pid_t>(name & kThreadId);
  if (thread == 0 || is_of_another_namespace(name) || pid_namespace() == 0) return false;
  const int saved_errno = errno;
  const bool ended = !exists(thread);
  errno = saved_errno;
  return ended;
}

void forget_pid_namespace() {
  the_pid_namespace.store(0, std::memory_order_relaxed);  // relaxed: a number by itself
}

}  // namespace clan::sys
