// How much memory the pipes of a process may take: CLAN_MEMORY, or by what the machine and the cgroup have. For the
// interposer, which keeps to it, and for `clan stat`, which tells who has reached it.
//
// Memory of a pipe belongs to the cgroup of whoever touches it first. At the cgroup's limit the kernel has nothing to
// say to a store into shared memory, and ends the program; to a send by TCP it can say "later". So pipes keep well
// below it: each may be filled with its share only, and there are no more of them than have a share of
// kLeastPipeBytes.
//
// Nothing here takes memory; any thread.
#pragma once

#include <clan/system_call.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace clan {

/// The page of a pipe, and of each ring 16 KiB with what lies around them.
constexpr std::uint64_t kLeastPipeBytes = 48 * 1024;
/// Of memory, and of a cgroup's.
constexpr std::uint64_t kPipesPart = 8, kPipesPartOfGroup = 4;

namespace pipe_memory_detail {

/// The beginning of a file of /proc or /sys, ended by a zero. False: there is none.
template <std::size_t N>
bool read_text(const char* path, char (&text)[N]) {
  const int fd = static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0));
  if (fd < 0) return false;
  const long n = sys::call(SYS_read, fd, text, N - 1);
  sys::close(fd);
  text[n > 0 ? n : 0] = 0;
  return n > 0;
}

/// The smallest of the limits in `file` of a group and those above it. ~0: none.
inline std::uint64_t least_above(const char* root, const char* group, const char* file) {
  std::uint64_t least = ~std::uint64_t{0};
  char path[512], text[32], name[256];
  std::snprintf(name, sizeof name, "%s", group);
  for (;;) {
    std::snprintf(path, sizeof path, "%s%s/%s", root, name, file);
    if (read_text(path, text) && text[0] >= '0' && text[0] <= '9') {
      least = std::min<std::uint64_t>(least, std::strtoull(text, nullptr, 10));
    }
    char* end = std::strrchr(name, '/');
    if (end == nullptr) return least;
    *end = 0;
  }
}

}  // namespace pipe_memory_detail

/// The limit of memory of the cgroup of a process (0: the calling one), by what /proc and /sys show. ~0: none.
inline std::uint64_t group_memory(int pid) {
  char path[64], text[2048];
  if (pid == 0) {
    std::snprintf(path, sizeof path, "/proc/self/cgroup");
  } else {
    std::snprintf(path, sizeof path, "/proc/%d/cgroup", pid);
  }
  std::uint64_t least = ~std::uint64_t{0};
  if (!pipe_memory_detail::read_text(path, text)) return least;
  for (char* line = text; line != nullptr && *line != 0;) {  // NUMBER:CONTROLLERS:PATH
    char* next = std::strchr(line, '\n');
    if (next != nullptr) *next++ = 0;
    char* controllers = std::strchr(line, ':');
    char* group = controllers != nullptr ? std::strchr(controllers + 1, ':') : nullptr;
    if (group != nullptr) {
      *group++ = 0;
      const bool first = std::strcmp(controllers, ":memory") == 0, second = std::strcmp(controllers, ":") == 0;
      if (first) {
        least = std::min(least, pipe_memory_detail::least_above("/sys/fs/cgroup/memory", group,
                                                                "memory.limit_in_bytes"));
      }
      if (second) {
        least = std::min(least, pipe_memory_detail::least_above("/sys/fs/cgroup", group, "memory.max"));
      }
    }
    line = next;
  }
  return least;
}

/// Bytes that the pipes of a process may take. `setting`: CLAN_MEMORY, 0: not set. `pid` as above.
inline std::uint64_t pipe_memory(std::uint64_t setting, int pid) {
  if (setting != 0) return setting;
  struct sysinfo about {};
  const std::uint64_t all = sys::call(SYS_sysinfo, &about) == 0 ? std::uint64_t{about.totalram} * about.mem_unit : 1u << 30;
  return std::min(all / kPipesPart, group_memory(pid) / kPipesPartOfGroup);
}

}  // namespace clan
