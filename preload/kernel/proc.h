// What /proc shows of processes: their descriptors, their credentials, and what they have mapped.
#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "os/scratch.h"
#include "os/sys.h"

namespace clan::preload {

// The names in a directory, without memory of our own.
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

/// A memfd of another process, by its descriptor there and the link that /proc shows for it, or -1.
/// The other process may have counted in another pid namespace: what is found must be known by its
/// contents.
int open_memfd_of(unsigned pid, int fd, const char* link, int flags);
/// Whether `is(link)` for the link in /proc of a descriptor of a process ("self", or its number),
/// among those for which `looks_at(fd)`. Nothing: /proc may not be read.
template <typename LooksAt, typename Is>
std::optional<bool> any_descriptor(const char* process, LooksAt&& looks_at, Is&& is) {
  char path[40], text[64];
  std::snprintf(path, sizeof path, "/proc/%.16s/fd", process);
  const int directory =
      static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory < 0) return std::nullopt;
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
/// The same, for all of them.
inline std::optional<bool> any_descriptor(const char* process, const char* link) {
  return any_descriptor(
      process, [](int) { return true; },
      [link](const char* found) { return std::strcmp(found, link) == 0; });
}
/// Opens the descriptors of a process that /proc shows as `link`, one after the other, until
/// `each(memfd)` answers true; it closes the memfd or keeps it. True: one has.
template <typename Each>
bool any_memfd_of(const char* process, const char* link, Each&& each) {
  int number = -1;
  const auto opens = [&](const char* found) {
    if (std::strcmp(found, link) != 0) return false;
    const int memfd =
        open_memfd_of(static_cast<unsigned>(std::atoi(process)), number, link, O_RDWR);
    return memfd >= 0 && each(memfd);
  };
  return any_descriptor(
             process, [&](int fd) { return number = fd, true; }, opens)
      .value_or(false);
}
/// Calls `each(pid)` for all processes, until one answers true. True: one has.
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
/// The process that made the other end of an AF_UNIX socket; 0: the kernel does not say.
inline pid_t process_behind(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return sys::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}
/// What the process has mapped shows this, as /proc/PID/maps says it. One that ends shows nothing.
bool maps(pid_t pid, std::string_view text);

}  // namespace clan::preload
