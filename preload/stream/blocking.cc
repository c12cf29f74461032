#include "stream/blocking.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "clan/detail/clock.h"
#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"
#include "os/real.h"
#include "os/signal_handlers.h"
#include "os/sys.h"
#include "state/ring_memory.h"
#include "stream/ending.h"
#include "stream/going_back.h"
#include "stream/remote_sleep.h"
#include "table/buffers.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {

std::uint64_t deadline_of(int fd, Socket& s, int option) {
  std::atomic<std::int64_t>& kept = option == SO_RCVTIMEO ? s.receive_timeout : s.send_timeout;
  // relaxed: a number by itself
  std::int64_t asked = kept.load(std::memory_order_relaxed), ns = asked;
  if (ns < 0 || s.inherited.load(std::memory_order_relaxed)) {
    const KeepErrno keep;
    timeval limit{};
    socklen_t size = sizeof limit;
    const bool answered = sys::getsockopt(fd, SOL_SOCKET, option, &limit, &size) == 0;
    constexpr time_t kMostSeconds = 4'000'000'000;  // longer than anybody lives
    ns = limit.tv_sec > kMostSeconds ? 0 : limit.tv_sec * 1'000'000'000 + limit.tv_usec * 1000;
    // relaxed: a number by itself
    if (answered && still_names(fd, s))
      (void)kept.compare_exchange_strong(asked, ns, std::memory_order_relaxed);
  }
  return ns == 0 ? kNoDeadline : monotonic_ns() + static_cast<std::uint64_t>(ns);
}

int time_left_ms(std::uint64_t deadline, int most) {
  if (deadline == kNoDeadline) return most;
  const std::uint64_t now = monotonic_ns();
  if (now >= deadline) return 0;
  const auto left =
      static_cast<int>(std::min<std::uint64_t>((deadline - now + 999'999) / 1'000'000, 1u << 30));
  return most < 0 ? left : std::min(left, most);
}

namespace {

// A handler ran during the call, where the kernel would have slept. Does that end the call?
bool interrupts(SignalSnapshot& since, std::uint64_t deadline) {
  if (!since.handled()) return false;
  // The kernel restarts no call with a timeout.
  if (since.interrupted() || deadline != kNoDeadline) return true;
  since.begin();
  return false;
}

// Our sleep was interrupted, and by no handler that the library has wrapped: by one that was set
// past the C library, or by SIGSTOP. The kernel would restart send() after either, the handler with
// SA_RESTART. Nothing tells which ran, so all such handlers must have it.
bool handlers_restart() {
  KeepErrno keep;
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    if (real().sigaction(number, nullptr, &action) != 0 || is_wrapped(action)) continue;
    const bool handled = action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
    if (handled && (action.sa_flags & SA_RESTART) == 0) return false;
  }
  return true;
}

}  // namespace

int sleep_for_bytes(int fd, Socket& s, const BellSleep* bell, bool more, std::uint64_t deadline,
                    SignalSnapshot& since) {
  share_memory_anew(monotonic_ns());  // as in an epoll_wait()
  const AllowSignals here;
  if (interrupts(since, deadline)) {
    errno = EINTR;
    return -1;
  }
  s.mine().words[socket_face::kSleeps].fetch_add(1, std::memory_order_relaxed);
  // A sleeping call wakes up for memory that cannot be released yet.
  const std::int64_t release_ns = release_memory();
  // Bytes in the pipe behind TCP's were announced already: nobody rings when another thread reads
  // TCP's, perhaps just now.
  const PipeFront front = s.pipe.front();
  const bool unrung = bell != nullptr && front != PipeFront::kNothing && front != PipeFront::kLeave;
  if (!reads_tcp(s) && !is_going_back(s) && front == PipeFront::kBytes) return 0;
  PacketSleep packets(is_remote(s), PacketSleep::May::kFetch);
  if (packets.has_come()) return kFetched;
  int most = release_ns < 0 ? -1 : static_cast<int>(release_ns / 1'000'000 + 1);
  if (is_going_back(s)) most = static_cast<int>(kGoingBackNs / 1'000'000);
  if (unrung || (bell != nullptr && !*bell)) most = kWithoutBellMs;
  most = time_left_ms(deadline, most);
  BellSleep::Woken woken;
  bool fetches = false;
  if (bell != nullptr && bell->has_socket()) {
    woken = bell->sleep(most);
  } else {
    pollfd p[2 + PacketSleep::kMost] = {{fd, POLLIN | POLLRDHUP, 0}};
    const nfds_t bells = bell != nullptr ? bell->watch(p + 1) : 0;
    pollfd* const extra = p + 1 + bells;
    woken.rc = real().poll(p, 1 + bells + packets.watch(extra), most);
    woken.rung = woken.rc > 0 && bells > 0 && bell->rung(p + 1);
    woken.by_socket = p[0].revents != 0;
    fetches = woken.rc > 0 && packets.ready(extra);
  }
  if (woken.rung && !woken.by_socket) note_checked(s);
  if (fetches) {
    s.pipe.unwant_data();
    (void)packets.fetch();
    woken.rung = true;
  }
  const int rc = woken.rc;
  if (rc == 0 && time_left_ms(deadline, 1) > 0) return 0;
  if (rc == 0) errno = EAGAIN;
  if (rc < 0 && !more && goes_on(0, deadline, since)) return 0;  // as recv() would
  if (rc <= 0 || !still_names(fd, s)) return -1;
  return woken.rung && !woken.by_socket ? kFetched : 0;
}

bool goes_on(std::size_t sent, std::uint64_t deadline, SignalSnapshot& since) {
  if (errno != EINTR || sent > 0 || deadline != kNoDeadline || since.interrupted()) return false;
  if (!since.handled()) return handlers_restart();  // set past the C library
  since.begin();
  return true;
}

int sleep_in_send(pollfd* p, int timeout_ms, SignalSnapshot& since, const BellSleep* bell) {
  const AllowSignals here;
  (void)release_memory();
  if (!since.handled()) {
    pollfd both[2] = {*p};
    const nfds_t bells = bell != nullptr ? bell->watch(both + 1) : 0;
    const int rc = real().poll(both, 1 + bells, timeout_ms);
    *p = both[0];
    if (rc > 0 && bells > 0) (void)bell->rung(both + 1);
    return rc;
  }
  errno = EINTR;
  return -1;
}

bool nap_in_call(int fd, const Socket& s, std::size_t moved, std::uint64_t deadline,
                 SignalSnapshot& since) {
  constexpr int kNapMs = 5;
  const int timeout = time_left_ms(deadline, kNapMs);
  if (timeout == 0) {
    errno = EAGAIN;
    return false;
  }
  pollfd none{-1, 0, 0};
  if (sleep_in_send(&none, timeout, since) < 0 && !goes_on(moved, deadline, since)) return false;
  return still_names(fd, s);
}

bool NapsInCall::nap() {
  if ((flags_ & MSG_DONTWAIT) != 0 || is_nonblocking(fd_, s_)) {
    const timespec moment{0, 1'000'000};  // the kernel says that it is ready
    sys::call(SYS_nanosleep, &moment, nullptr);
    errno = EAGAIN;
    return false;
  }
  if (!since_) {
    since_.emplace();
    deadline_ = deadline_of(fd_, s_, option_);
  }
  return nap_in_call(fd_, s_, 0, deadline_, *since_);
}

int ask_nonblocking(int fd, Socket& s) {
  const int flags = sys::fcntl(fd, F_GETFL);
  const int known = flags >= 0 && (flags & O_NONBLOCK) != 0 ? 1 : 0;
  s.nonblocking.store(known, std::memory_order_relaxed);
  return known;
}

}  // namespace clan::preload
