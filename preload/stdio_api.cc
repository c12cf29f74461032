// Streams of the C library on sockets.
#include <sys/types.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "af_clan.h"
#include "epoll.h"
#include "real.h"
#include "socket.h"

extern "C" int __vasprintf_chk(char** text, int flag, const char* format, va_list list);

using namespace clan::preload;

CLAN_INTERPOSE int fclose(FILE* stream) {
  if (stream != nullptr) {
    const int fd = ::fileno(stream);
    if (fd >= 0) {
      // What is buffered goes out by write() of ours only if it is ours to write: see fdopen.
      forget_epoll(fd);
      if (is_af_clan(fd)) forget_af_clan(fd);
      if (hold(fd)) {
        const int rc = std::fflush(stream);
        forget(fd);
        return real().fclose(stream) != 0 ? EOF : rc;
      }
    }
  }
  return real().fclose(stream);
}

namespace {

// The C library's own streams read and write past us, so a stream on a TCP socket is made of calls of ours.
ssize_t cookie_read(void* cookie, char* buffer, size_t n) {
  return ::read(static_cast<int>(reinterpret_cast<std::intptr_t>(cookie)), buffer, n);
}
ssize_t cookie_write(void* cookie, const char* buffer, size_t n) {
  const int fd = static_cast<int>(reinterpret_cast<std::intptr_t>(cookie));
  std::size_t done = 0;
  while (done < n) {
    const ssize_t k = ::write(fd, buffer + done, n - done);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) break;
    done += static_cast<std::size_t>(k);
  }
  return static_cast<ssize_t>(done);
}
int cookie_close(void* cookie) { return ::close(static_cast<int>(reinterpret_cast<std::intptr_t>(cookie))); }

}  // namespace

CLAN_INTERPOSE FILE* fdopen(int fd, const char* mode) {
  Held s = hold(fd);
  if (!s) return real().fdopen(fd, mode);
  const cookie_io_functions_t calls{cookie_read, cookie_write, nullptr, cookie_close};
  FILE* stream = ::fopencookie(reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), mode, calls);
  // fileno() must go on to work.
  if (stream != nullptr) stream->_fileno = fd;
  return stream;
}

namespace {

// `flag`: of the fortified functions, -1 for the plain ones.
int print(int fd, int flag, const char* format, va_list list) {
  if (flag < 0 && !hold(fd)) return real().vdprintf(fd, format, list);
  char* text = nullptr;
  const int n = flag < 0 ? ::vasprintf(&text, format, list) : ::__vasprintf_chk(&text, flag, format, list);
  if (n < 0) return -1;
  const ssize_t written = cookie_write(reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), text,
                                       static_cast<std::size_t>(n));
  KeepErrno keep;
  std::free(text);
  return written == n ? n : -1;
}

}  // namespace

CLAN_INTERPOSE int vdprintf(int fd, const char* format, va_list list) { return print(fd, -1, format, list); }
CLAN_INTERPOSE int __vdprintf_chk(int fd, int flag, const char* format, va_list list) {
  return print(fd, flag, format, list);
}
CLAN_INTERPOSE int dprintf(int fd, const char* format, ...) {
  va_list list;
  va_start(list, format);
  const int n = print(fd, -1, format, list);
  va_end(list);
  return n;
}
CLAN_INTERPOSE int __dprintf_chk(int fd, int flag, const char* format, ...) {
  va_list list;
  va_start(list, format);
  const int n = print(fd, flag, format, list);
  va_end(list);
  return n;
}
