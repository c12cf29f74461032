#include "kernel/proc.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "os/scratch.h"
#include "os/sys.h"

namespace clan::preload {

int open_memfd_of(unsigned pid, int fd, const char* link, int flags) {
  char path[64], text[64];
  std::snprintf(path, sizeof path, "/proc/%u/fd/%d", pid, fd);
  // Checked first: opening something else, a terminal or a FIFO, could do something.
  const long n = sys::call(SYS_readlinkat, AT_FDCWD, path, text, sizeof text - 1);
  text[n > 0 ? n : 0] = 0;
  if (std::strcmp(text, link) != 0) {
    if (n >= 0) errno = ENOENT;
    return -1;
  }
  // Not to be waited for either, if it is one by now.
  return static_cast<int>(
      sys::call(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
}

bool maps(pid_t pid, std::string_view wanted) {
  char path[40];
  std::snprintf(path, sizeof path, "/proc/%d/maps", static_cast<int>(pid));
  const int file = static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC));
  if (file < 0) return false;
  const Scratch memory(Scratch::kUsual);
  char* const text = memory.as<char>();
  std::size_t kept = 0;
  bool found = false;
  for (long n; text != nullptr && !found &&
               (n = sys::call(SYS_read, file, text + kept, Scratch::kUsual - kept)) > 0;) {
    const std::size_t size = kept + static_cast<std::size_t>(n);
    found = ::memmem(text, size, wanted.data(), wanted.size()) != nullptr;
    kept = std::min(wanted.size() - 1, size);
    std::memmove(text, text + size - kept, kept);
  }
  sys::close(file);
  return found;
}

}  // namespace clan::preload
