#include "tcp/tcp_backlog.h"

#include <linux/bpf.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "clan/detail/log.h"
#include "kernel/tcp.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/remote.h"
#include "table/open_file.h"
#include "tcp/aborted.h"

namespace clan::preload {
namespace {

using namespace socket_face;

// The kernel counts a FIN as received, but not as queued.
bool fin_counted(Socket& s, const tcp_info& info) {
  switch (info.tcpi_state) {
    case BPF_TCP_CLOSE_WAIT:
    case BPF_TCP_LAST_ACK:
    case BPF_TCP_CLOSING:
    case BPF_TCP_TIME_WAIT: s.fin_counted.set(); break;
    case BPF_TCP_CLOSE: {
      // After a reset only the sum shows a FIN: the peer sent no more than this.
      auto& theirs = s.theirs().words;
      const std::uint64_t most = theirs[kSwitchAt].load(std::memory_order_relaxed);
      if ((state_of(s.theirs()) & (kSending | kGone)) == kSending &&
          info.tcpi_bytes_received == most + 1) {
        s.fin_counted.set();
      }
      break;
    }
    default: break;
  }
  return s.fin_counted;
}

// Computes how many bytes were ever read from the kernel.
bool read_by_tcp(int fd, Socket& s, std::uint64_t* bytes) {
  tcp_info info{};
  std::size_t queued = 0;
  if (!received_by_tcp(fd, &info, &queued)) return false;
  const std::uint64_t kept = queued + (fin_counted(s, info) ? 1 : 0);
  const std::uint64_t read = info.tcpi_bytes_received < kept ? 0 : info.tcpi_bytes_received - kept;
  // Less than when it moved: a BPF program has begun to redirect what arrives.
  // relaxed: constant by now
  *bytes = std::max<std::uint64_t>(read, s.open_file().received.load(std::memory_order_relaxed));
  return true;
}

// Pushes what TCP_CORK, Nagle's algorithm or MSG_MORE holds back: no more bytes follow.
void push(int fd) {
  const auto get = [&](int option) {
    int value = 0;
    socklen_t size = sizeof value;
    return sys::getsockopt(fd, IPPROTO_TCP, option, &value, &size) == 0 && value != 0;
  };
  const auto put = [&](int option, int value) {
    sys::setsockopt(fd, IPPROTO_TCP, option, &value, sizeof value);
  };
  if (get(TCP_CORK)) put(TCP_CORK, 0), put(TCP_CORK, 1);
  const bool waits = !get(TCP_NODELAY);
  put(TCP_NODELAY, 1);  // pushes even if it was set before
  if (waits) put(TCP_NODELAY, 0);
}

}  // namespace

bool switch_sending_now(int fd, Socket& s) {
  auto& mine = s.mine();
  if ((state_of(mine) & kSending) != 0) return true;
  if ((state_of(s.theirs()) & kAttached) == 0) return false;
  KeepErrno keep;
  const DeferSignals undisturbed;
  // No send may be in the kernel, in any process.
  OpenFileState& slot = s.open_file();
  const std::int32_t me = closer_id();
  if (!OpenFileState::try_close(slot.sends, me)) return (state_of(mine) & kSending) != 0;
  std::uint64_t bytes = 0;
  bool switched = (state_of(mine) & kSending) != 0;
  const bool over = (state_of(s.theirs()) & kLeaving) != 0 || (state_of(mine) & kGone) != 0;
  const bool remote = is_remote(s);
  const bool known =
      remote ? sent_for_sure(fd, s.client, &bytes)
             // relaxed: behind the closed gate
             : sent_by_tcp(fd, &bytes) && bytes == slot.sent.load(std::memory_order_relaxed);
  if (!switched && !over && known) {
    push(fd);
    mine.words[kSwitchAt].store(bytes, std::memory_order_relaxed);
    // Not after kGone, which another process may have set while this one was stopped.
    std::uint64_t now = state_of(mine);
    while (
        (now & kGone) == 0 &&
        // PAIR face.state: publishes kSwitchAt
        !mine.words[kState].compare_exchange_weak(now, now | kSending, std::memory_order_seq_cst)) {
    }
    if (remote) {
      switched = (now & kGone) == 0;
      OpenFileState::open(slot.sends, me);
      if (switched) wake_remote(fd, s);
      return switched;
    }
    // A leaving end says so before it checks for this switch: at least one sees the other.
    switched = (now & kGone) == 0 && (state_of(s.theirs()) & kLeaving) == 0;
    // PAIR face.state: taken back
    if (!switched)
      mine.words[kState].fetch_and(~std::uint64_t{kSending}, std::memory_order_seq_cst);
    CLAN_DEBUG("fd %d sends through the pipe after %llu bytes of TCP", fd,
               static_cast<unsigned long long>(bytes));
  }
  OpenFileState::open(slot.sends, me);
  return switched;
}

ssize_t left_in_tcp(int fd, Socket& s, std::size_t* certain) {
  *certain = 0;
  int queued = 0;
  if (sys::ioctl(fd, FIONREAD, &queued) != 0) return -1;
  if ((state_of(s.theirs()) & kSending) == 0) {
    // The peer has not switched even now, so it queued these bytes before.
    *certain = static_cast<std::size_t>(queued);
    return 1;
  }
  std::uint64_t read = 0;
  if (!read_by_tcp(fd, s, &read)) return -1;
  const std::uint64_t until = s.theirs().words[kSwitchAt].load(std::memory_order_relaxed);
  constexpr std::uint64_t kMostUnderWay = std::uint64_t{1} << 32;  // TCP windows are smaller
  if (until > read + kMostUnderWay) {
    break_off(fd, s, "its pipe begins where it cannot");
    errno = ECONNRESET;
    return -1;
  }
  if (read >= until) {
    // PAIR preload.drained: TCP is read up to the switch
    s.drained.store(true, std::memory_order_release);
    CLAN_DEBUG("fd %d reads the pipe after %llu bytes of TCP", fd,
               static_cast<unsigned long long>(read));
    return 0;
  }
  if (sys::ioctl(fd, FIONREAD, &queued) != 0) return -1;
  *certain = std::min<std::size_t>(until - read, static_cast<std::size_t>(queued));
  return static_cast<ssize_t>(until - read);
}

void note_end(int fd, Socket& s, ssize_t n) {
  if (n == 0 && other_end_is_open(fd)) {
    s.shut_read.store(true, std::memory_order_relaxed);  // relaxed: the kernel's state
  } else if (n == 0) {
    s.kernel_end.set();
  }
  // If another thread has closed the descriptor, the socket may have others.
  const bool closed = errno == EBADF || errno == ENOTSOCK;
  if (n < 0 && errno != EAGAIN && errno != EINTR && !closed) note_error(s, errno);
}

}  // namespace clan::preload
