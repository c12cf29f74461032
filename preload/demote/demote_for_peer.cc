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

#include "attach/peer_auth.h"
#include "clan/detail/clock.h"
#include "clan/detail/words.h"
#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"
#include "demote/demote_steps.h"
#include "demote/handback.h"
#include "demote/resend.h"
#include "kernel/proc.h"
#include "kernel/tcp.h"
#include "os/scratch.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/socket.h"
#include "table/slot_table.h"
#include "tcp/aborted.h"

namespace clan::preload {
namespace {

using socket_face::kGivenBack;
using socket_face::kGone;

// The other end's, and a process that has it. -1: not to be had.
int their_socket(int fd, pid_t* owner) {
  const std::uint32_t inode = sys::proc_is_ours() ? inode_of_other_end(fd) : 0;
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

// How long TCP may take to move anything.
constexpr std::uint64_t kForRoomNs = 200'000'000;

// Puts what is in the pipe into the file.
bool keep_pipe(Socket& s, int file, const Scratch& memory) {
  const iovec io{memory.as<void>(), Scratch::kUsual};
  for (;;) {
    const Pipe::Done done = s.pipe.receive(&io, 1, false);
    if (done.err != 0 || done.bytes == 0) return done.err == 0;
    if (!keep(file, memory.as<char>(), done.bytes)) return false;
  }
}

// And what comes by TCP, until `all` bytes have come that the other end has ever sent.
bool keep_later(int fd, int file, std::uint64_t all, const Scratch& memory) {
  for (std::uint64_t deadline_ns = monotonic_ns() + kForRoomNs;;) {
    const std::uint64_t come = arrived(fd);  // its end counts as a byte
    const ssize_t n = sys::recv(fd, memory.as<void>(), Scratch::kUsual, MSG_DONTWAIT);
    if (n > 0) {
      if (!keep(file, memory.as<char>(), static_cast<std::size_t>(n))) return false;
      deadline_ns = monotonic_ns() + kForRoomNs;
    } else if (come >= all) {
      return true;
    } else if (monotonic_ns() > deadline_ns) {
      return false;
    } else {
      nap();
    }
  }
}

// Sends once more, by the other end's socket, what it has sent and nobody has read, in its order:
// what came by TCP before the switch (in the file `taken`), by the pipe, and by TCP since the other
// end went. The process that could read it waits for this one: what TCP does not hold it does not
// take. False: some of it is nowhere any more, or out of order.
bool send_anew(int fd, Socket& s, int socket, int taken, const Scratch& memory) {
  if (has_nothing_back(taken) && s.pipe.front() != PipeFront::kBytes) return true;
  std::uint64_t before = 0, after = 0, at = 0;
  if (!sent_by_tcp(socket, &before) || !keep_pipe(s, taken, memory)) return false;
  if ((state_of(s.theirs()) & kGone) != 0 && !keep_later(fd, taken, before, memory)) return false;
  const std::uint64_t all = bytes_in(taken);
  ResendSource source(memory.as<char>());
  source.open(socket, taken);
  source.begin(all);
  for (std::uint64_t deadline_ns = monotonic_ns() + kForRoomNs; at < all;) {
    const SentAgain what = source.send(at);
    if (what == SentAgain::kSome) {
      at += source.count();
      deadline_ns = monotonic_ns() + kForRoomNs;
    } else if (what != SentAgain::kNoRoom || monotonic_ns() > deadline_ns) {
      return false;
    } else {
      pollfd p{socket, POLLOUT, 0};
      sys::poll(&p, 1, 10);
    }
  }
  // A process that has that socket without the pipe may have sent by it in between.
  return sent_by_tcp(socket, &after) && after == before + all;
}

// Keeps the threads of the other end out, by its locks, and puts its last record into the pipe.
// False: its locks cannot be found, as its process is out of descriptors.
bool leave_in_its_place(const Socket& s, int socket, pid_t pid) {
  auto other = s.pipe.at_other_end();
  SocketIdentity id;
  OpenFileState* const slot = other && identify(socket, &id) ? find_slot(id, pid) : nullptr;
  if (slot == nullptr) return false;
  other->use_locks(slot->locks);
  (void)other->leave();  // EPIPE: it has gone, or half-closed
  drop_slot(slot);
  return true;
}

// The other end has gone when this returns true.
bool take_it_back(int fd, Socket& s, int socket, pid_t pid, int taken, const Scratch& memory) {
  // One that has gone is in no call on the pipe. Its socket may be another process's by now, which
  // has no slot.
  const bool had_gone = (state_of(s.theirs()) & kGone) != 0;
  if (!had_gone && !leave_in_its_place(s, socket, pid)) return false;
  if (!send_anew(fd, s, socket, taken, memory))
    break_off(fd, s, "TCP does not hold all that was not read before the connection goes back");
  if (s.pipe.page().ends[1 - s.pipe.end()].sender.ended.load(std::memory_order_relaxed) == 1)
    sys::call(SYS_shutdown, socket, SHUT_WR);
  set_gone(s.theirs());
  words::store_release(s.mine().words[kGivenBack], kDone);  // PAIR face.given
  return true;
}

}  // namespace

bool do_their_part(int fd, Socket& s, int taken) {
  pid_t pid = 0;
  const int socket = taken >= 0 ? their_socket(fd, &pid) : -1;
  const Scratch memory(Scratch::kUsual);
  if (socket < 0) return false;
  if (!memory) return sys::close(socket), false;
  const bool well = take_it_back(fd, s, socket, pid, taken, memory);
  sys::close(socket);
  return well;
}

}  // namespace clan::preload
