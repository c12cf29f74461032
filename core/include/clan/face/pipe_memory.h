// How much memory the pipes of a user may take, CLAN_MEMORY or by what the machine and the cgroup
// have, and how many pipes the user has. For the interposer, which keeps to it, and for `clan
// stat`, which tells which process has reached it.
//
// Memory of a pipe belongs to the cgroup of the process that touches it first. Beyond the
// cgroup's limit a store into shared memory ends the program, where a send by TCP would get EAGAIN.
// So pipes keep well below it: each may be filled with its share only, and there are no more of
// them than have a share of kLeastPipeBytes.
//
// Pipes are counted in System V semaphores, which need no file and no helper, and from which the
// kernel takes back what a process has added when that ends in whatever way (SEM_UNDO). There is a
// set for each user, and one more for each cgroup with a limit that the user has processes in. A
// pipe is counted once, by the process that moved its accepting end. Each IPC namespace has its own
// semaphores.
//
// Nothing here keeps memory; any thread.
#pragma once

#include <clan/detail/system_call.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace clan {

/// The page of a pipe, and of each ring 16 KiB with what lies around them.
constexpr std::uint64_t kLeastPipeBytes = 48 * 1024;
/// The parts of all memory, and of a cgroup's.
constexpr std::uint64_t kPipesPart = 8, kPipesPartOfGroup = 4;

namespace pipe_memory_detail {

/// The beginning of a file of /proc or /sys, ended by a zero. False: there is none.
template <std::size_t N>
bool read_text(const char* path, char (&text)[N]) {
  return sys::read_file(path, text, N) > 0;
}

/// FNV-1a.
inline std::uint64_t hash(const char* text, std::uint64_t from = 0xcbf2'9ce4'8422'2325u) {
  for (; *text != 0; ++text) from = (from ^ static_cast<unsigned char>(*text)) * 0x100'0000'01b3u;
  return from;
}

}  // namespace pipe_memory_detail

/// A cgroup with a limit of memory.
struct MemoryGroup {
  std::uint64_t bytes = ~std::uint64_t{0};  ///< ~0: there is none
  std::uint64_t name = 0;                   ///< a hash of its path
};

namespace pipe_memory_detail {

/// Texts, in memory of their own: stacks may be small.
struct Texts {
  char groups[2048], path[512], name[256], limit[32];
};

/// The one with the smallest limit in `file` of a group and those above it.
inline MemoryGroup least_above(Texts& texts, const char* root, const char* group,
                               const char* file) {
  MemoryGroup least;
  auto& [groups, path, name, limit] = texts;
  std::snprintf(name, sizeof name, "%s", group);
  for (;;) {
    std::snprintf(path, sizeof path, "%s%s/%s", root, name, file);
    if (read_text(path, limit) && limit[0] >= '0' && limit[0] <= '9') {
      const std::uint64_t bytes = std::strtoull(limit, nullptr, 10);
      if (bytes < least.bytes) least = {bytes, hash(path)};
    }
    char* end = std::strrchr(name, '/');
    if (end == nullptr) return least;
    *end = 0;
  }
}

inline MemoryGroup least_of(int pid, Texts& texts) {
  MemoryGroup least;
  char path[64];
  if (pid == 0) {
    std::snprintf(path, sizeof path, "/proc/self/cgroup");
  } else {
    std::snprintf(path, sizeof path, "/proc/%d/cgroup", pid);
  }
  if (!read_text(path, texts.groups)) return least;
  const auto take = [&least](const MemoryGroup& one) {
    if (one.bytes < least.bytes) least = one;
  };
  for (char* line = texts.groups; line != nullptr && *line != 0;) {  // NUMBER:CONTROLLERS:PATH
    char* next = std::strchr(line, '\n');
    if (next != nullptr) *next++ = 0;
    char* controllers = std::strchr(line, ':');
    char* group = controllers != nullptr ? std::strchr(controllers + 1, ':') : nullptr;
    if (group != nullptr) {
      *group++ = 0;
      const bool first = std::strcmp(controllers, ":memory") == 0,
                 second = std::strcmp(controllers, ":") == 0;
      if (first) take(least_above(texts, "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
      if (second) take(least_above(texts, "/sys/fs/cgroup", group, "memory.max"));
    }
    line = next;
  }
  return least;
}

}  // namespace pipe_memory_detail

/// The cgroup that limits the memory of a process (0: the calling one), by what /proc and /sys
/// show.
inline MemoryGroup memory_group(int pid) {
  using pipe_memory_detail::Texts;
  void* const memory =
      sys::mmap(nullptr, sizeof(Texts), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return {};
  const MemoryGroup least = pipe_memory_detail::least_of(pid, *static_cast<Texts*>(memory));
  sys::munmap(memory, sizeof(Texts));
  return least;
}

/// What the pipes of a user may take, and those of the user's processes in one cgroup.
struct PipeBounds {
  std::uint64_t user = 0;  ///< bytes
  MemoryGroup group;
};

/// The bounds of a process (0: the calling one). `setting`: CLAN_MEMORY, which holds for the user
/// alone; 0: not set.
inline PipeBounds pipe_bounds(std::uint64_t setting, int pid) {
  if (setting != 0) return {setting, {}};
  struct sysinfo about {};
  const bool known = sys::call(SYS_sysinfo, &about) == 0;
  const std::uint64_t all = known ? std::uint64_t{about.totalram} * about.mem_unit : 1u << 30;
  MemoryGroup group = memory_group(pid);
  if (group.bytes >= all) group = {};  // version 1 says that there is no limit by a large number
  if (group.name != 0) group.bytes /= kPipesPartOfGroup;
  return {all / kPipesPart, group};
}

// --- how many there are --------------------------------------------------------------------------

/// In a set; each holds 32767.
constexpr int kPipeCounters = 8;

/// The set in which the pipes of a user are counted, or with MemoryGroup::name those of one group;
/// made if `makes`. -1 with errno: there is none, or another user has taken its key.
inline int pipe_counters(unsigned uid, std::uint64_t group, bool makes) {
  char text[64];
  std::snprintf(text, sizeof text, "clan1 pipes %u %llx", uid,
                static_cast<unsigned long long>(group));
  const std::uint64_t hash = pipe_memory_detail::hash(text);
  auto key = static_cast<key_t>(hash ^ hash >> 32);
  if (key == IPC_PRIVATE) key = 1;
  const long id = sys::call(SYS_semget, key, kPipeCounters, makes ? IPC_CREAT | 0600 : 0);
  struct semid_ds about {};
  if (id < 0 || sys::call(SYS_semctl, id, 0, IPC_STAT, &about) != 0) return -1;
  if (about.sem_perm.uid == uid && about.sem_nsems == kPipeCounters) return static_cast<int>(id);
  errno = EACCES;
  return -1;
}

/// What a set counts; <0 with errno: it is not there any more.
inline std::int64_t counted_pipes(int id) {
  unsigned short values[kPipeCounters] = {};
  if (sys::call(SYS_semctl, id, 0, GETALL, values) != 0) return -1;
  std::int64_t sum = 0;
  for (const unsigned short value : values) sum += value;
  return sum;
}

}  // namespace clan
