// What /proc shows of processes and their descriptors.
#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "os/scratch.h"
#include "os/sys.h"

namespace clan::preload {

// The names in a directory, without allocation.
class DirectoryReader {
 public:
  explicit DirectoryReader(int fd) : fd_(fd) {}
  const char* next() {
    if (!memory_) return nullptr;
    if (at_ >= size_) {
      size_ = sys::call(SYS_getdents64, fd_, memory_.as<char>(), Scratch::kUsual);
      at_ = 0;
      if (size_ <= 0) return nullptr;
    }
    const char* entry = memory_.as<char>() + at_;
    std::uint16_t length;
    // struct linux_dirent64: ino, off, reclen, type, name
    std::memcpy(&length, entry + 16, sizeof length);
    at_ += length;
    return entry + 19;
  }

 private:
  int fd_;
  long at_ = 0, size_ = 0;
  const Scratch memory_{Scratch::kUsual};
};

/// Opens a memfd of another process, by its descriptor there and the link that /proc shows for it;
/// or -1. The pid may be of another namespace, so the caller must check the contents.
inline int open_memfd_of(unsigned pid, int fd, const char* link) {
  char path[64], text[64];
  std::snprintf(path, sizeof path, "/proc/%u/fd/%d", pid, fd);
  // Checked first: opening a terminal or a FIFO could have an effect.
  const long n = sys::call(SYS_readlinkat, AT_FDCWD, path, text, sizeof text - 1);
  text[n > 0 ? n : 0] = 0;
  if (std::strcmp(text, link) != 0) {
    if (n >= 0) errno = ENOENT;
    return -1;
  }
  // It may be one by now.
  return static_cast<int>(
      sys::call(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
}
/// Tells whether `is(link)` for the link in /proc of a descriptor of a process ("self", or its
/// number), among those for which `looks_at(fd)`. False also if /proc cannot be read.
template <typename LooksAt, typename Is>
bool any_descriptor(const char* process, LooksAt&& looks_at, Is&& is) {
  char path[40], text[64];
  std::snprintf(path, sizeof path, "/proc/%.16s/fd", process);
  const int directory =
      static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory < 0) return false;
  bool any = false;
  DirectoryReader names(directory);
  while (const char* name = any ? nullptr : names.next()) {
    if (name[0] == '.' || !looks_at(std::atoi(name))) continue;
    const long n = sys::call(SYS_readlinkat, directory, name, text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    any = is(text);
  }
  sys::close(directory);
  return any;
}
/// Opens the memfds of a process that /proc shows as `link`, until `each(memfd)`, which closes or
/// keeps it, returns true. Tells whether one did.
template <typename Each>
bool any_memfd_of(const char* process, const char* link, Each&& each) {
  int number = -1;
  const auto opens = [&](const char* found) {
    if (std::strcmp(found, link) != 0) return false;
    const int memfd = open_memfd_of(static_cast<unsigned>(std::atoi(process)), number, link);
    return memfd >= 0 && each(memfd);
  };
  return any_descriptor(
      process, [&](int fd) { return number = fd, true; }, opens);
}
/// Calls `each(pid)` for all processes, until one returns true. Tells whether one did.
template <typename Each>
bool any_process(Each&& each) {
  const int proc = static_cast<int>(
      sys::call(SYS_openat, AT_FDCWD, "/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (proc < 0) return false;
  bool any = false;
  DirectoryReader names(proc);
  while (const char* name = any ? nullptr : names.next())
    any = *name >= '1' && *name <= '9' && each(name);
  sys::close(proc);
  return any;
}
/// Returns the process that made the other end of an AF_UNIX socket; 0: unknown.
inline pid_t process_behind(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return sys::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

/// Tells whether the process is in this process's pid namespace, not in one below it.
inline bool counts_as_we_do(const char* pid) {
  char path[64], ours[64], theirs[64];
  std::snprintf(path, sizeof path, "/proc/%.16s/ns/pid", pid);
  const long n = sys::call(SYS_readlinkat, AT_FDCWD, "/proc/self/ns/pid", ours, sizeof ours);
  const long m = sys::call(SYS_readlinkat, AT_FDCWD, path, theirs, sizeof theirs);
  return n > 0 && n == m && std::memcmp(ours, theirs, static_cast<std::size_t>(n)) == 0;
}

}  // namespace clan::preload
