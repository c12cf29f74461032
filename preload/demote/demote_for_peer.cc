// An end that leaves sends again itself what it has not read, by a copy of its peer's socket
// (pidfd_getfd): the peer may be busy, or wait for this very process.
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "attach/peer_auth.h"
#include "clan/detail/clock.h"
#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"
#include "demote/demote_on_request.h"
#include "demote/resend.h"
#include "kernel/proc.h"
#include "kernel/tcp.h"
#include "os/sandbox.h"
#include "os/scratch.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/socket.h"
#include "table/slot_table.h"
#include "tcp/aborted.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

using namespace socket_face;

/// TCP gets this long to move anything.
constexpr std::uint64_t kForRoomNs = 200'000'000;

// The peer's socket, and a process that has it. -1: there is none.
int their_socket(int fd, pid_t* owner) {
  const std::uint32_t inode = permits_taking() && sys::proc_is_ours() ? inode_of_other_end(fd) : 0;
  char link[32];
  std::snprintf(link, sizeof link, "socket:[%u]", inode);
  int found = -1;
  const auto take = [&](const char* pid, int number) {
    *owner = std::atoi(pid);
    const int process = static_cast<int>(sys::call(SYS_pidfd_open, *owner, 0));
    if (process < 0) return false;
    found = static_cast<int>(sys::call(SYS_pidfd_getfd, process, number, 0));
    sys::close(process);
    // The process may have closed it, or another one may have its number.
    struct stat st {};
    if (found >= 0 && sys::fstat(found, &st) == 0 && S_ISSOCK(st.st_mode) && st.st_ino == inode)
      return true;
    if (found >= 0) sys::close(std::exchange(found, -1));
    return false;
  };
  const auto has_it = [&](const char* pid) {
    int number = -1;
    return any_descriptor(
        pid, [&](int one) { return number = one, true; },
        [&](const char* text) {
          return std::strcmp(text, link) == 0 && counts_as_we_do(pid) && take(pid, number);
        });
  };
  if (inode != 0) (void)any_process(has_it);
  return found;
}

// Keeps the peer's threads out by its locks, and puts its last record into the pipe. False: its
// locks cannot be found, as its process is out of descriptors.
bool leave_in_its_place(const Socket& s, int socket, pid_t pid) {
  auto peer = s.pipe.at_other_end();
  SocketIdentity id;
  OpenFileState* const slot = peer && identify(socket, &id) ? find_slot(id, pid) : nullptr;
  if (slot == nullptr) return false;
  peer->use_locks(slot->locks);
  (void)peer->leave();  // EPIPE: it has gone, or half-closed
  drop_slot(slot);
  return true;
}

/// Bytes that nobody has read.
class Unread {
 public:
  explicit Unread(std::size_t most) : memory_(most), most_(most) {}
  explicit operator bool() const { return static_cast<bool>(memory_); }
  const char* data() const { return memory_.as<char>(); }
  std::size_t size() const { return size_; }
  /// Takes what lies in the pipe. False: it holds what cannot be.
  bool take_pipe(Socket& s) {
    const iovec io{memory_.as<char>() + size_, most_ - size_};
    const Pipe::Done done = s.pipe.receive(&io, 1, false);
    size_ += done.bytes;
    return done.err == 0;
  }
  /// Takes TCP's bytes while `left()`, which says how many of those in the kernel's queue it may
  /// take, is not negative. False: none has come for long, or there are too many.
  template <typename Left>
  bool take_tcp(int fd, const Left& left) {
    std::uint64_t until = monotonic_ns() + kForRoomNs;
    for (long may; (may = left()) >= 0;) {
      const std::size_t room = std::min<std::size_t>(may, most_ - size_);
      const ssize_t n =
          room > 0 ? sys::recv(fd, memory_.as<char>() + size_, room, MSG_DONTWAIT) : -1;
      if (n > 0) {
        size_ += static_cast<std::size_t>(n);
        until = monotonic_ns() + kForRoomNs;
      } else if (monotonic_ns() > until) {
        return false;
      } else {
        nap();
      }
    }
    return true;
  }

 private:
  const Scratch memory_;
  const std::size_t most_;
  std::size_t size_ = 0;
};

bool send_all(int socket, const Unread& bytes) {
  std::uint64_t until = monotonic_ns() + kForRoomNs;
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t n =
        sys::send(socket, bytes.data() + at, bytes.size() - at, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      at += static_cast<std::size_t>(n);
      until = monotonic_ns() + kForRoomNs;
    } else if ((errno != EAGAIN && errno != EINTR) || monotonic_ns() > until) {
      return false;
    } else {
      pollfd p{socket, POLLOUT, 0};
      sys::poll(&p, 1, 10);
    }
  }
  return true;
}

// Sends what was not read once more, in its order: what lies in the pipe and, if the peer had gone
// back before, what came by TCP in front of that and behind it. False: some of it is nowhere, or
// out of order.
bool send_anew(int fd, Socket& s, int socket, bool had_gone) {
  std::uint64_t before = 0, after = 0;
  int queued = 0, under_way = 0;
  if (!sent_by_tcp(socket, &before)) return false;
  if (had_gone &&
      (sys::ioctl(fd, FIONREAD, &queued) != 0 || sys::ioctl(socket, SIOCOUTQ, &under_way) != 0))
    return false;
  Unread bytes(s.pipe.readable_bytes() + static_cast<std::size_t>(queued) +
               static_cast<std::size_t>(under_way));
  if (!bytes) return false;
  const auto before_pipe = [&]() -> long {
    if (s.has_drained()) return -1;
    const Draining draining(s);
    std::size_t certain = 0;
    return left_in_tcp(fd, s, &certain) == 0 ? -1 : static_cast<long>(certain);
  };
  const auto behind_pipe = [&]() -> long {
    int more = 0;
    const bool all = arrived(fd) >= before;  // its end counts as a byte
    return sys::ioctl(fd, FIONREAD, &more) != 0 || (all && more == 0) ? -1 : more;
  };
  if (had_gone && !bytes.take_tcp(fd, before_pipe)) return false;
  if (!bytes.take_pipe(s)) return false;
  if (had_gone && !bytes.take_tcp(fd, behind_pipe)) return false;
  // A process that has that socket without the pipe may have sent by it meanwhile.
  return send_all(socket, bytes) && sent_by_tcp(socket, &after) && after == before + bytes.size();
}

}  // namespace

bool do_their_part(int fd, Socket& s) {
  pid_t pid = 0;
  const int socket = their_socket(fd, &pid);
  if (socket < 0) return false;
  const bool had_gone = (state_of(s.theirs()) & kGone) != 0;
  if (!had_gone && !leave_in_its_place(s, socket, pid)) return sys::close(socket), false;
  if (!send_anew(fd, s, socket, had_gone))
    break_off(fd, s, "TCP does not hold all that was not read before the connection goes back");
  if (s.pipe.page().ends[1 - s.pipe.end()].sender.ended.load(std::memory_order_relaxed) == 1)
    sys::call(SYS_shutdown, socket, SHUT_WR);  // relaxed: behind its last record
  add_state(s.theirs(), kGone);
  sys::close(socket);
  return true;
}

}  // namespace clan::preload
