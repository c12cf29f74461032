// Streams of the C library on sockets.
#include <sys/types.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "calls/interpose.h"
#include "demote/demote.h"
#include "os/real.h"
#include "os/sys.h"
#include "share/fd_events.h"
#include "table/fd_table.h"
#include "table/internal_fds.h"

extern "C" int __vasprintf_chk(char** text, int flag, const char* format, va_list list);

using namespace clan::preload;

namespace {

// Ends at an error, also EINTR, as in the C library's streams.
std::size_t write_all(int fd, const char* bytes, std::size_t n) {
  std::size_t done = 0;
  while (done < n) {
    const ssize_t k = ::write(fd, bytes + done, n - done);
    if (k <= 0) break;
    done += static_cast<std::size_t>(k);
  }
  return done;
}

// The C library closes the descriptor past the library.
void closes(FILE* stream) {
  if (const int fd = stream != nullptr ? ::fileno(stream) : -1; fd >= 0) about_to_go(fd);
}

// `flag` is that of the fortified functions; -1: none.
int print(int fd, int flag, const char* format, va_list list) {
  if (flag < 0 && !acquire(fd)) return real().vdprintf(fd, format, list);
  char* text = nullptr;
  const int n =
      flag < 0 ? ::vasprintf(&text, format, list) : ::__vasprintf_chk(&text, flag, format, list);
  if (n < 0) return -1;
  const std::size_t written = write_all(fd, text, static_cast<std::size_t>(n));
  KeepErrno keep;
  std::free(text);
  return written == static_cast<std::size_t>(n) ? n : -1;
}

}  // namespace

CLAN_INTERPOSE int fclose(FILE* stream) {
  closes(stream);
  return real().fclose(stream);
}
CLAN_INTERPOSE FILE* freopen(const char* path, const char* mode, FILE* stream) {
  closes(stream);
  return with_room([&] { return real().freopen(path, mode, stream); });
}
CLAN_INTERPOSE FILE* freopen64(const char* path, const char* mode, FILE* stream) {
  closes(stream);
  return with_room([&] { return real().freopen64(path, mode, stream); });
}

// The C library's streams read and write past the library.
CLAN_INTERPOSE FILE* fdopen(int fd, const char* mode) {
  if (const SocketRef s = acquire(fd)) never_move(fd, *s, clan::reasons::Why::kStream);
  return real().fdopen(fd, mode);
}

CLAN_INTERPOSE int vdprintf(int fd, const char* format, va_list list) {
  return print(fd, -1, format, list);
}
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
