// System calls past the C library, whose calls interposers and sanitizers in other people's
// processes take for the program's own. Not cancellation points; safe in signal handlers.
//
// Sanitizer builds of CLAN use the C library, to see mappings and closes; so do other processors.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace clan::sys {

/// At most six arguments, integers or pointers. -1 with errno, or what the kernel answers.
template <typename... Arguments>
long call(long number, Arguments... arguments) {
  static_assert(sizeof...(arguments) <= 6);
  long a[6] = {((long)arguments)...};
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  long result = number;
  register long r10 asm("r10") = a[3];
  register long r8 asm("r8") = a[4];
  register long r9 asm("r9") = a[5];
  asm volatile("syscall"
               : "+a"(result)
               : "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  if (result < 0 && result > -4096) {
    errno = static_cast<int>(-result);
    return -1;
  }
  return result;
#else
  return ::syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
#endif
}

/// /proc counts processes as our pid namespace does.
bool proc_is_ours();

/// Returns whether a process or thread (in our pid namespace) can still run; a killed one that its
/// parent has not waited for cannot. When in doubt, true. Changes errno.
bool exists(pid_t id);

/// Returns the inode of our pid namespace, cached until forget_pid_namespace() (in a fork's child);
/// 0: not known.
std::uint32_t pid_namespace();
void forget_pid_namespace();

/// A thread in words that processes share: its id, and above it bits of its pid namespace.
constexpr std::uint32_t kThreadId = (1u << 23) - 1, kNamespaceBits = 255u << 23;
/// Names a thread of this process's pid namespace.
std::uint32_t name_of(std::uint32_t thread);
/// The id in that name may be another thread's here.
bool is_of_another_namespace(std::uint32_t name);
/// That thread has ended. Certain, unless it is of another namespace whose bits are the same.
bool has_ended(std::uint32_t name);

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline int close(int fd) { return ::close(fd); }
inline int fcntl(int fd, int command, long argument = 0) { return ::fcntl(fd, command, argument); }
inline int fstat(int fd, struct stat* st) { return ::fstat(fd, st); }
inline void* mmap(void* at, std::size_t bytes, int protection, int flags, int fd, off_t from) {
  return ::mmap(at, bytes, protection, flags, fd, from);
}
inline int munmap(void* at, std::size_t bytes) { return ::munmap(at, bytes); }
#else
inline int close(int fd) { return static_cast<int>(call(SYS_close, fd)); }
inline int fcntl(int fd, int command, long argument = 0) {
  return static_cast<int>(call(SYS_fcntl, fd, command, argument));
}
inline int fstat(int fd, struct stat* st) {
  return static_cast<int>(call(SYS_newfstatat, fd, "", st, AT_EMPTY_PATH));
}
inline void* mmap(void* at, std::size_t bytes, int protection, int flags, int fd, off_t from) {
  return reinterpret_cast<void*>(call(SYS_mmap, at, bytes, protection, flags, fd, from));
}
inline int munmap(void* at, std::size_t bytes) {
  return static_cast<int>(call(SYS_munmap, at, bytes));
}
#endif

/// Reads the beginning of a file, as in /proc, and ends it with a zero. Returns the bytes read, at
/// most `size` - 1; -1 with errno.
inline long read_file(const char* path, char* to, std::size_t size) {
  to[0] = 0;
  const int fd = static_cast<int>(call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC));
  if (fd < 0) return -1;
  const long n = call(SYS_read, fd, to, size - 1);
  to[n > 0 ? n : 0] = 0;
  sys::close(fd);
  return n;
}

}  // namespace clan::sys
