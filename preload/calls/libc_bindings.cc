// Functions of the C library that the engine and the library call, as system calls.
//
// A program may define sched_yield() or stat(), as it may read(). A call of the library would land
// there, and might come back. These definitions are hidden, so the linker binds all calls of the
// library and the engine to them. tests/interpose/programs/imports.py says if one is missing.
#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>

#include <atomic>

#include "os/sys.h"

namespace sys = clan::preload::sys;

#define CLAN_OWN extern "C" __attribute__((visibility("hidden")))

CLAN_OWN pid_t getpid() noexcept { return static_cast<pid_t>(sys::call(SYS_getpid)); }
CLAN_OWN uid_t geteuid() noexcept { return static_cast<uid_t>(sys::call(SYS_geteuid)); }
// Declared with another visibility, so the list of exports hides this one.
extern "C" int sched_yield() noexcept { return static_cast<int>(sys::call(SYS_sched_yield)); }
CLAN_OWN int access(const char* path, int mode) noexcept {
  return static_cast<int>(sys::call(SYS_access, path, mode));
}
CLAN_OWN int chmod(const char* path, mode_t mode) noexcept {
  return static_cast<int>(sys::call(SYS_chmod, path, mode));
}
CLAN_OWN int stat(const char* path, struct stat* st) noexcept {
  return static_cast<int>(sys::call(SYS_newfstatat, AT_FDCWD, path, st, 0));
}
CLAN_OWN int fstatat(int directory, const char* path, struct stat* st, int flags) noexcept {
  return static_cast<int>(sys::call(SYS_newfstatat, directory, path, st, flags));
}
CLAN_OWN int fstatfs(int fd, struct statfs* st) noexcept {
  return static_cast<int>(sys::call(SYS_fstatfs, fd, st));
}
CLAN_OWN ssize_t fgetxattr(int fd, const char* name, void* value, size_t size) noexcept {
  return sys::call(SYS_fgetxattr, fd, name, value, size);
}
CLAN_OWN off_t lseek(int fd, off_t to, int from) noexcept {
  return sys::call(SYS_lseek, fd, to, from);
}
CLAN_OWN ssize_t pread(int fd, void* to, size_t n, off_t from) {
  return sys::call(SYS_pread64, fd, to, n, from);
}
CLAN_OWN int madvise(void* at, size_t bytes, int advice) noexcept {
  return static_cast<int>(sys::call(SYS_madvise, at, bytes, advice));
}
CLAN_OWN void* mremap(void* at, size_t bytes, size_t wanted, int flags, ...) noexcept {
  // The engine never names a place.
  return reinterpret_cast<void*>(sys::call(SYS_mremap, at, bytes, wanted, flags, 0));
}
CLAN_OWN int getrlimit(__rlimit_resource_t resource, rlimit* limit) noexcept {
  return static_cast<int>(sys::call(SYS_prlimit64, 0, resource, nullptr, limit));
}

// The C library's, which needs no system call; the program's own clock may stand still.
CLAN_OWN int clock_gettime(clockid_t clock, timespec* now) noexcept {
  using Call = int (*)(clockid_t, timespec*);
  static std::atomic<Call> below{nullptr};
  Call call = below.load(std::memory_order_relaxed);  // relaxed: every thread finds the same
  if (call == nullptr) {
    call = reinterpret_cast<Call>(::dlsym(RTLD_NEXT, "clock_gettime"));
    if (call == nullptr) return static_cast<int>(sys::call(SYS_clock_gettime, clock, now));
    below.store(call, std::memory_order_relaxed);
  }
  return call(clock, now);
}
