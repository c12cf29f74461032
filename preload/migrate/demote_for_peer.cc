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
#include <utility>

#include "clan/clock.h"
#include "clan/dekker.h"
#include "clan/pipe.h"
#include "clan/socket_face.h"
#include "clan/words.h"
#include "migrate/demote_end.h"
#include "migrate/returned_bytes.h"
#include "migrate/trust.h"
#include "os/proc.h"
#include "os/scratch.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/slot_table.h"
#include "state/socket.h"
#include "stream/aborted.h"
#include "stream/doorbell.h"

namespace clan::preload {
namespace {

using socket_face::kGivenBack;
using socket_face::kGone;

// The other end's, and a process that has it. -1: not to be had.
int their_socket(int fd, pid_t* owner) {
  const std::uint32_t inode = proc_is_ours() ? inode_of_other_end(fd) : 0;
  char link[32];
  std::snprintf(link, sizeof link, "socket:[%u]", inode);
  int found = -1;
  const auto take = [&](const char* pid, int number) {
    *owner = std::atoi(pid);
    const int process = static_cast<int>(sys::call(SYS_pidfd_open, *owner, 0));
    if (process < 0) return false;
    found = static_cast<int>(sys::call(SYS_pidfd_getfd, process, number, 0));
    sys::close(process);
    // It may have closed that, or been followed by another of its number.
    struct stat st {};
    char text[32] = "";
    if (found >= 0 && sys::fstat(found, &st) == 0 && S_ISSOCK(st.st_mode))
      std::snprintf(text, sizeof text, "socket:[%lu]", static_cast<unsigned long>(st.st_ino));
    if (found < 0 || std::strcmp(text, link) == 0) return found >= 0;
    sys::close(std::exchange(found, -1));
    return false;
  };
  const auto has_it = [&](const char* pid) {
    int number = -1;
    return any_descriptor(
               pid, [&](int one) { return number = one, true; },
               [&](const char* text) {
                 return std::strcmp(text, link) == 0 && counts_as_we_do(pid) && take(pid, number);
               })
        .value_or(false);
  };
  if (inode != 0) (void)any_process(has_it);
  return found;
}

// The process that could read it waits for us: what TCP does not hold it does not take.
bool send_all(int to, const char* bytes, std::size_t count) {
  constexpr std::uint64_t kForRoomNs = 200'000'000;
  std::uint64_t deadline_ns = monotonic_ns() + kForRoomNs;
  for (std::size_t at = 0; at < count;) {
    const ssize_t n = sys::send(to, bytes + at, count - at, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      at += static_cast<std::size_t>(n);
      deadline_ns = monotonic_ns() + kForRoomNs;
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
bool send_pipe(int to, Socket& s, const Scratch& memory) {
  const iovec io{memory.as<void>(), Scratch::kUsual};
  for (;;) {
    const Pipe::Done done = s.pipe.receive(&io, 1, false);
    if (done.err != 0 || done.bytes == 0) return done.err == 0;
    if (!send_all(to, memory.as<char>(), done.bytes)) return false;
  }
}

// In their order: what came by TCP before the switch, by the pipe, and by TCP since. False: some of
// it is nowhere any more.
bool send_unread(int fd, Socket& s, int socket, int taken, const Scratch& memory) {
  int later = -1;
  bool all = true;
  if ((state_of(s.theirs()) & kGone) != 0) {
    later = static_cast<int>(sys::call(SYS_memfd_create, "clan-later", MFD_CLOEXEC));
    all = take_later(fd, later, memory);
  }
  all = all && send_file(socket, taken, sizeof(TakenHead), memory) &&
        send_pipe(socket, s, memory) && (later < 0 || send_file(socket, later, 0, memory));
  if (later >= 0) sys::close(later);
  return all;
}

}  // namespace

namespace {

// The other end has gone when this returns true. `slot`: its locks; null where they cannot be
// found, as that process is out of descriptors. Then its threads are not kept out: they ring no
// more by the word alone, and none is in a call for longer than a copy takes.
bool take_it_back(int fd, Socket& s, int socket, int taken, Slot* slot, const Scratch& memory) {
  auto other = s.pipe.at_other_end();
  if (!other) return false;
  if (slot != nullptr) other->use_locks(slot->locks);
  // PAIR face.given: Dekker with send_counted_doorbell(), before the count is read
  dekker::announce(s.mine().words[kGivenBack], socket_face::kHush);
  (void)other->leave();  // EPIPE: it has gone, or half-closed
  if (slot != nullptr) silence(socket, s.theirs(), *slot);
  if (!swallow_doorbells(fd, s)) {                    // one is on its way
    dekker::announce(s.mine().words[kGivenBack], 0);  // PAIR face.given: it is to answer
    return false;
  }
  if (!send_unread(fd, s, socket, taken, memory))
    break_off(fd, s, "TCP does not hold all that was not read before the connection goes back");
  if (s.pipe.page().ends[1 - s.pipe.end()].sender.ended.load(std::memory_order_relaxed) == 1)
    sys::call(SYS_shutdown, socket, SHUT_WR);
  set_gone(s.theirs());
  words::publish(s.mine().words[kGivenBack], kDone);  // PAIR face.given
  return true;
}

}  // namespace

bool do_their_part(int fd, Socket& s, int taken) {
  pid_t pid = 0;
  const int socket = their_socket(fd, &pid);
  const Scratch memory(Scratch::kUsual);
  if (socket < 0) return false;
  if (!memory) return sys::close(socket), false;
  Slot* const slot = find_slot_of_pipe(pid, s.pipe.inode(), 1 - s.pipe.end());
  const bool well = take_it_back(fd, s, socket, taken, slot, memory);
  drop_slot(slot);
  sys::close(socket);
  return well;
}

}  // namespace clan::preload
