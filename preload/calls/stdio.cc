// Streams of the C library on sockets.
#include <stdio_ext.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "calls/interpose.h"
#include "clan/words.h"
#include "os/memory_owner.h"
#include "os/real.h"
#include "os/sys.h"
#include "share/fd_events.h"
#include "state/fd_table.h"

extern "C" int __vasprintf_chk(char** text, int flag, const char* format, va_list list);

using namespace clan::preload;

namespace {

// The C library's own streams read and write past us, so a stream on a TCP socket is made of our
// calls.
struct Stream {
  std::atomic<FILE*> file{nullptr};  // null: free for another
  int fd = -1;
  Stream* next = nullptr;
};
std::atomic<Stream*> streams{nullptr};  // never shortened
char mark;                              // what stands for a stream until there is one
FILE* const not_yet = reinterpret_cast<FILE*>(&mark);

Stream* find(FILE* file) {
  Stream* s = clan::words::look(streams);  // PAIR preload.streams
  // relaxed: a stream is closed by the thread that opened it or was given it
  while (s != nullptr && s->file.load(std::memory_order_relaxed) != file) s = s->next;
  return s;
}

Stream* new_stream(int fd) {
  Stream* first = clan::words::look(streams);  // PAIR preload.streams
  for (Stream* s = first; s != nullptr; s = s->next) {
    FILE* none = nullptr;
    // PAIR preload.stream_free: behind what its last user has done with `fd`
    if (clan::words::replace(s->file, none, not_yet)) {
      return s->fd = fd, s;
    }
  }
  auto* s = new (std::nothrow) Stream;
  if (s == nullptr) return nullptr;
  s->file.store(not_yet, std::memory_order_relaxed);  // relaxed: published with the entry
  s->fd = fd;
  s->next = streams.load(std::memory_order_relaxed);
  // PAIR preload.streams
  while (!clan::words::replace(streams, s->next, s)) {
  }
  return s;
}

// As the C library writes from its streams: until all is written, or something goes wrong. A signal
// does, too.
std::size_t write_all(int fd, const char* bytes, std::size_t n) {
  std::size_t done = 0;
  while (done < n) {
    const ssize_t k = ::write(fd, bytes + done, n - done);
    if (k <= 0) break;
    done += static_cast<std::size_t>(k);
  }
  return done;
}

ssize_t cookie_read(void* cookie, char* buffer, size_t n) {
  return ::read(static_cast<Stream*>(cookie)->fd, buffer, n);
}
ssize_t cookie_write(void* cookie, const char* buffer, size_t n) {
  return static_cast<ssize_t>(write_all(static_cast<Stream*>(cookie)->fd, buffer, n));
}
// fflush() of a stream that has read ahead asks for this, and takes ESPIPE for no failure.
int cookie_seek(void*, off64_t*, int) {
  errno = ESPIPE;
  return -1;
}
int cookie_close(void* cookie) {
  auto* stream = static_cast<Stream*>(cookie);
  const int fd = stream->fd;
  // PAIR preload.stream_free: `fd` has been read
  clan::words::publish(stream->file, nullptr);
  return ::close(fd);
}

// exit() writes what is left in streams when all else has ended; by then a connection to another
// host says that it has. So this comes before end() of process.cc. A stream that another thread
// uses is left alone, as that may never let go of it.
__attribute__((destructor)) void flush_streams() {
  if (in_borrowed_memory()) return;
  // PAIR preload.streams
  for (Stream* s = clan::words::look(streams); s != nullptr; s = s->next) {
    FILE* const file = s->file.load(std::memory_order_relaxed);  // relaxed: as in find()
    if (file == nullptr || file == not_yet || ::ftrylockfile(file) != 0) continue;
    if (::__fpending(file) > 0) std::fflush(file);
    ::funlockfile(file);
  }
}

}  // namespace

CLAN_INTERPOSE int fclose(FILE* stream) {
  // What is left in such a stream goes out by our write(), and its descriptor by our close().
  const int fd = stream != nullptr && find(stream) == nullptr ? ::fileno(stream) : -1;
  if (fd >= 0) about_to_go(fd);
  return real().fclose(stream);
}

CLAN_INTERPOSE FILE* fdopen(int fd, const char* mode) {
  Held s = hold(fd);
  if (!s) return real().fdopen(fd, mode);
  const cookie_io_functions_t calls{cookie_read, cookie_write, cookie_seek, cookie_close};
  Stream* cookie = new_stream(fd);
  FILE* stream = cookie != nullptr ? ::fopencookie(cookie, mode, calls) : nullptr;
  if (cookie == nullptr) errno = ENOMEM;
  if (stream != nullptr) stream->_fileno = fd;  // fileno() must go on to work
  // PAIR preload.stream_free: where there is no stream, the entry is free again
  if (cookie != nullptr) clan::words::publish(cookie->file, stream);
  return stream;
}

namespace {

// `flag`: of the fortified functions, -1 for the plain ones.
int print(int fd, int flag, const char* format, va_list list) {
  if (flag < 0 && !hold(fd)) return real().vdprintf(fd, format, list);
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
