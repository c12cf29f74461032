// libclan-record.so: `clan-tlbsim record` has the dynamic linker load it into a program. It wraps
// the C library's calls on sockets and writes, for each buffer that bytes were sent from or
// received into, a line of a trace (trace.h).
//
// The trace is an open descriptor that the program inherits. CLAN_RECORD says which, and of which
// file, so that no line goes to a file that the program has opened under that number.
//
// Thread-safety: a line is one write() to a descriptor that appends. No call changes errno.
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr const char* kSent = "r";
constexpr const char* kReceived = "recv";

// The next definition behind this library, which is the C library's.
template <typename Call>
Call* next(Call*, const char* name) {
  return reinterpret_cast<Call*>(::dlsym(RTLD_NEXT, name));
}

bool is_socket(int fd) {
  struct stat about {};
  return ::fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode);
}

// From CLAN_RECORD, when the library is loaded: programs may clear their environment.
struct Trace {
  int fd = -1;
  unsigned long device = 0, inode = 0;
} trace;

__attribute__((constructor)) void find_trace() {
  const char* text = std::getenv("CLAN_RECORD");
  if (text == nullptr ||
      std::sscanf(text, "%d:%lu:%lu", &trace.fd, &trace.device, &trace.inode) != 3)
    trace.fd = -1;
}

// The program has not closed it.
bool has_trace() {
  struct stat about {};
  return trace.fd >= 0 && ::fstat(trace.fd, &about) == 0 && about.st_dev == trace.device &&
         about.st_ino == trace.inode;
}

// Writes the lines of a call that has moved `bytes` bytes, and returns them.
ssize_t note(const char* op, int fd, const iovec* buffers, std::size_t count, ssize_t bytes) {
  if (bytes <= 0) return bytes;
  const int saved = errno;
  if (is_socket(fd) && has_trace()) {
    auto left = static_cast<std::size_t>(bytes);
    for (std::size_t k = 0; k < count && left > 0; ++k) {
      const std::size_t n = std::min(left, buffers[k].iov_len);
      left -= n;
      if (n == 0) continue;
      char line[80];
      const int length = std::snprintf(line, sizeof line, "%d %s %p %zu\n", ::getpid(), op,
                                       buffers[k].iov_base, n);
      (void)!::syscall(SYS_write, trace.fd, line, static_cast<std::size_t>(length));
    }
  }
  errno = saved;
  return bytes;
}

ssize_t note(const char* op, int fd, const void* buffer, ssize_t bytes) {
  const iovec one{const_cast<void*>(buffer), static_cast<std::size_t>(std::max<ssize_t>(bytes, 0))};
  return note(op, fd, &one, 1, bytes);
}

void note_each(const char* op, int fd, const mmsghdr* messages, int count) {
  for (int k = 0; k < count; ++k) {
    const msghdr& m = messages[k].msg_hdr;
    note(op, fd, m.msg_iov, m.msg_iovlen, static_cast<ssize_t>(messages[k].msg_len));
  }
}

// A peek leaves the bytes for the call that receives them.
bool takes(int flags) { return (flags & MSG_PEEK) == 0; }

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

ssize_t read(int fd, void* to, std::size_t size) {
  static const auto call = next(&read, "read");
  return note(kReceived, fd, to, call(fd, to, size));
}
ssize_t write(int fd, const void* from, std::size_t size) {
  static const auto call = next(&write, "write");
  return note(kSent, fd, from, call(fd, from, size));
}
ssize_t readv(int fd, const iovec* to, int count) {
  static const auto call = next(&readv, "readv");
  return note(kReceived, fd, to, static_cast<std::size_t>(count), call(fd, to, count));
}
ssize_t writev(int fd, const iovec* from, int count) {
  static const auto call = next(&writev, "writev");
  return note(kSent, fd, from, static_cast<std::size_t>(count), call(fd, from, count));
}
ssize_t recv(int fd, void* to, std::size_t size, int flags) {
  static const auto call = next(&recv, "recv");
  const ssize_t bytes = call(fd, to, size, flags);
  return takes(flags) ? note(kReceived, fd, to, bytes) : bytes;
}
ssize_t send(int fd, const void* from, std::size_t size, int flags) {
  static const auto call = next(&send, "send");
  return note(kSent, fd, from, call(fd, from, size, flags));
}
ssize_t recvfrom(int fd, void* to, std::size_t size, int flags, sockaddr* name, socklen_t* length) {
  static const auto call = next(&recvfrom, "recvfrom");
  const ssize_t bytes = call(fd, to, size, flags, name, length);
  return takes(flags) ? note(kReceived, fd, to, bytes) : bytes;
}
ssize_t sendto(int fd, const void* from, std::size_t size, int flags, const sockaddr* name,
               socklen_t length) {
  static const auto call = next(&sendto, "sendto");
  return note(kSent, fd, from, call(fd, from, size, flags, name, length));
}
ssize_t recvmsg(int fd, msghdr* message, int flags) {
  static const auto call = next(&recvmsg, "recvmsg");
  const ssize_t bytes = call(fd, message, flags);
  return takes(flags) ? note(kReceived, fd, message->msg_iov, message->msg_iovlen, bytes) : bytes;
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static const auto call = next(&sendmsg, "sendmsg");
  return note(kSent, fd, message->msg_iov, message->msg_iovlen, call(fd, message, flags));
}
int recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  static const auto call = next(&recvmmsg, "recvmmsg");
  const int done = call(fd, messages, count, flags, timeout);
  if (takes(flags)) note_each(kReceived, fd, messages, done);
  return done;
}
int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  static const auto call = next(&sendmmsg, "sendmmsg");
  const int done = call(fd, messages, count, flags);
  note_each(kSent, fd, messages, done);
  return done;
}
// What programs that are compiled with _FORTIFY_SOURCE call; the C library checks the size.
ssize_t __read_chk(int fd, void* to, std::size_t size, std::size_t room) {
  static const auto call = next(&__read_chk, "__read_chk");
  return note(kReceived, fd, to, call(fd, to, size, room));
}
ssize_t __recv_chk(int fd, void* to, std::size_t size, std::size_t room, int flags) {
  static const auto call = next(&__recv_chk, "__recv_chk");
  const ssize_t bytes = call(fd, to, size, room, flags);
  return takes(flags) ? note(kReceived, fd, to, bytes) : bytes;
}
ssize_t __recvfrom_chk(int fd, void* to, std::size_t size, std::size_t room, int flags,
                       sockaddr* name, socklen_t* length) {
  static const auto call = next(&__recvfrom_chk, "__recvfrom_chk");
  const ssize_t bytes = call(fd, to, size, room, flags, name, length);
  return takes(flags) ? note(kReceived, fd, to, bytes) : bytes;
}

}  // extern "C"
#pragma GCC visibility pop
