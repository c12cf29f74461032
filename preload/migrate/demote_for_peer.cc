#include "migrate/demote_for_peer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "clan/clock.h"
#include "clan/pipe.h"
#include "clan/socket_face.h"
#include "clan/wait_budget.h"
#include "clan/words.h"
#include "migrate/demote_end.h"
#include "migrate/returned_bytes.h"
#include "migrate/trust.h"
#include "os/proc.h"
#include "os/scratch.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/socket.h"
#include "stream/aborted.h"
#include "stream/doorbell.h"

namespace clan::preload {
namespace {

using socket_face::kGivenBack;
using socket_face::kGone;

// A descriptor of the socket that `link` names, from a process that has it. -1: it has not, or may
// not be asked.
int socket_of(const char* pid, const char* link) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%.16s/fd", pid);
  const int directory =
      static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory < 0) return -1;
  int found = -1;
  DirectoryReader names(directory);
  while (const char* name = found < 0 ? names.next() : nullptr) {
    char text[64];
    const long n = sys::call(SYS_readlinkat, directory, name, text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    if (std::strcmp(text, link) != 0) continue;
    if (!counts_as_we_do(pid)) break;
    const int process = static_cast<int>(sys::call(SYS_pidfd_open, std::atoi(pid), 0));
    if (process < 0) break;
    found = static_cast<int>(sys::call(SYS_pidfd_getfd, process, std::atoi(name), 0));
    sys::close(process);
    // It may have closed that, or been followed by another of its number.
    struct stat st {};
    if (found < 0) continue;
    const bool known = sys::fstat(found, &st) == 0 && S_ISSOCK(st.st_mode);
    std::snprintf(text, sizeof text, "socket:[%lu]", static_cast<unsigned long>(st.st_ino));
    if (known && std::strcmp(text, link) == 0) continue;
    sys::close(found);
    found = -1;
  }
  sys::close(directory);
  return found;
}

// The other end's. -1: not to be had.
int their_socket(int fd) {
  const std::uint32_t inode = proc_is_ours() ? inode_of_other_end(fd) : 0;
  const int proc = inode == 0 ? -1
                              : static_cast<int>(sys::call(SYS_openat, AT_FDCWD, "/proc",
                                                           O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (proc < 0) return -1;
  char link[32];
  std::snprintf(link, sizeof link, "socket:[%u]", inode);
  int found = -1;
  DirectoryReader processes(proc);
  while (const char* pid = found < 0 ? processes.next() : nullptr) {
    if (*pid >= '1' && *pid <= '9') found = socket_of(pid, link);
  }
  sys::close(proc);
  return found;
}

// The process that could read it waits for us: what TCP does not hold it does not take.
bool send_all(int to, const char* bytes, std::size_t count) {
  std::uint64_t deadline_ns = monotonic_ns() + WaitBudget::kMostInCallsNs;
  for (std::size_t at = 0; at < count;) {
    const ssize_t n = sys::send(to, bytes + at, count - at, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      at += static_cast<std::size_t>(n);
      deadline_ns = monotonic_ns() + WaitBudget::kMostInCallsNs;
    } else if (n < 0 && errno == EAGAIN && monotonic_ns() < deadline_ns) {
      pollfd p{to, POLLOUT, 0};
      sys::poll(&p, 1, 10);
    } else if (n == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

// What the other end has sent by TCP after it had gone by itself, behind what lies in the pipe.
// False: some of it is lost.
bool take_later(int fd, int to, const Scratch& memory) {
  for (long n; (n = sys::recv(fd, memory.as<void>(), Scratch::kUsual, MSG_DONTWAIT)) > 0;) {
    if (sys::call(SYS_write, to, memory.as<void>(), n) != n) return false;
  }
  return true;
}

// From `at` on.
bool send_file(int to, int from, long at, const Scratch& memory) {
  for (long n; (n = sys::call(SYS_pread64, from, memory.as<void>(), Scratch::kUsual, at)) > 0;
       at += n) {
    if (!send_all(to, memory.as<char>(), static_cast<std::size_t>(n))) return false;
  }
  return true;
}

// What lies in the pipe, too. False: TCP does not take it.
bool send_pipe(int to, Socket& s, LastWait& wait, const Scratch& memory) {
  const iovec io{memory.as<void>(), Scratch::kUsual};
  for (;;) {
    const Pipe::Done done = s.pipe.receive(&io, 1, false);
    if (done.err == EBUSY) {  // a process that shares this end was stopped while it read
      if (!wait.nap(false)) return false;
    } else if (done.err != 0 || done.bytes == 0) {
      return done.err == 0;
    } else if (!send_all(to, memory.as<char>(), done.bytes)) {
      return false;
    }
  }
}

// In their order: what came by TCP before the switch, by the pipe, and by TCP since. False: some of
// it is nowhere any more.
bool send_unread(int fd, Socket& s, int socket, int taken, LastWait& wait, const Scratch& memory) {
  int later = -1;
  bool all = true;
  if ((state_of(s.theirs()) & kGone) != 0) {
    later = static_cast<int>(sys::call(SYS_memfd_create, "clan-later", MFD_CLOEXEC));
    all = take_later(fd, later, memory);
  }
  all = all && send_file(socket, taken, sizeof(TakenHead), memory) &&
        send_pipe(socket, s, wait, memory) && (later < 0 || send_file(socket, later, 0, memory));
  if (later >= 0) sys::close(later);
  return all;
}

// Nobody of the other end rings any more. Its threads may have other ids here: none is taken for
// dead.
bool hush(Socket& s) {
  auto& bells = s.theirs().words[socket_face::kBells];
  CallWait wait(s.pipe.call_waits());
  std::uint64_t now = words::set_bits(bells, socket_face::kBellsClosed);  // PAIR face.bells
  while ((now & (socket_face::kBellsClosed - 1)) != 0) {
    if (!wait.goes_on(monotonic_ns())) return false;
    nap();
    now = words::look(bells);  // PAIR face.bells: as in silence_other_end()
  }
  return true;
}

// Without a descriptor of its socket: where there is nothing that only it could send, neither bytes
// nor an end, the words and the ring are enough.
bool end_their_part(int fd, Socket& s, int taken, LastWait& wait) {
  const long bytes = sys::call(SYS_lseek, taken, 0, SEEK_CUR);
  if (bytes > static_cast<long>(sizeof(TakenHead)) || s.pipe.front() != PipeFront::kNothing ||
      (state_of(s.theirs()) & kGone) != 0)
    return false;
  auto other = s.pipe.at_other_end();
  if (!other) return false;
  Pipe::Done last;
  // A thread of it may have been stopped in the middle of a copy. That takes 0.2 s at most, and so
  // nothing is done here in the place of a thread that is not seen.
  while ((last = other->leave()).err == EBUSY) {
    if (!wait.nap(true)) return false;
  }
  // EPIPE: it goes by itself, or has half-closed. Bytes may have come meanwhile.
  if (last.err != 0 || s.pipe.front() != PipeFront::kLeave || !hush(s)) return false;
  for (CallWait doorbells(s.pipe.call_waits()); !swallow_doorbells(fd, s); nap()) {
    if (!doorbells.goes_on(monotonic_ns())) return false;
  }
  set_gone(s.theirs());
  words::publish(s.mine().words[kGivenBack], kDone);  // PAIR face.given
  return true;
}

}  // namespace

bool do_their_part(int fd, Socket& s, int taken, LastWait& wait) {
  const int socket = their_socket(fd);
  if (socket < 0) return end_their_part(fd, s, taken, wait);
  auto other = s.pipe.at_other_end();
  const Scratch memory(Scratch::kUsual);
  bool well = other && memory;
  // EPIPE: it has gone, or half-closed. A thread of it may have been stopped in the middle of a
  // copy.
  while (well && other->leave().err == EBUSY) well = wait.nap(true);
  if (well) {
    well = silence_other_end(s);
    if (well) close_count(socket, s.theirs());
    well = well && swallow_doorbells(fd, s);
    if (well && !(well = send_unread(fd, s, socket, taken, wait, memory))) {
      break_off(fd, s, "TCP does not hold all that was not read before the connection goes back");
    }
    if (s.pipe.page().ends[1 - s.pipe.end()].sender.ended.load(std::memory_order_relaxed) == 1)
      sys::call(SYS_shutdown, socket, SHUT_WR);
    set_gone(s.theirs());
    words::publish(s.mine().words[kGivenBack], kDone);  // PAIR face.given
  }
  sys::close(socket);
  return well;
}

}  // namespace clan::preload
