// Reading, writing and waiting on a socket that has moved into a pipe.
#include "transfer.h"

#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/time.h>

#include <algorithm>
#include <csignal>

#include "clan/clock.h"
#include "clan/log.h"
#include "epoll.h"
#include "socket.h"

namespace clan::preload {
namespace {

using socket_face::kBells;
using socket_face::kCorked;
using socket_face::kDoorbells;
using socket_face::kGone;
using socket_face::kLeaving;
using socket_face::kNodelay;
using socket_face::kReset;
using socket_face::kSending;
using socket_face::kState;
using socket_face::kSwallowed;
using socket_face::kSwitchAt;

constexpr std::uint64_t kCheckNs = 1'000'000;  ///< how often a busy sender asks whether the peer is alive
constexpr int kMostBuffers = 64;
constexpr int kLongestNapMs = 16;  ///< of a send that cannot be told of room

}  // namespace

bool sent_by_tcp(int fd, std::uint64_t* bytes) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  if (size < offsetof(tcp_info, tcpi_bytes_retrans) + sizeof info.tcpi_bytes_retrans) return false;
  *bytes = info.tcpi_bytes_sent - info.tcpi_bytes_retrans + info.tcpi_notsent_bytes;
  return true;
}

namespace {

// The kernel counts a FIN as a byte received, but not as one queued.
bool fin_counted(Socket& s, const tcp_info& info) {
  switch (info.tcpi_state) {
    case BPF_TCP_CLOSE_WAIT:
    case BPF_TCP_LAST_ACK:
    case BPF_TCP_CLOSING:
    case BPF_TCP_TIME_WAIT: s.fin_counted.store(true); break;
    case BPF_TCP_CLOSE: {
      // Reset, perhaps behind a FIN, which only the sum tells: the peer has sent no more than this.
      auto& theirs = s.theirs().words;
      const std::uint64_t most = theirs[kSwitchAt].load() + theirs[kDoorbells].load();
      if ((state_of(s.theirs()) & (kSending | kGone)) == kSending && info.tcpi_bytes_received == most + 1) {
        s.fin_counted.store(true);
      }
      break;
    }
    default: break;
  }
  return s.fin_counted.load();
}

// Bytes that have been read from the kernel, ever.
bool read_by_tcp(int fd, Socket& s, std::uint64_t* bytes) {
  for (;;) {
    tcp_info info{};
    socklen_t size = sizeof info;
    int queued = 0, again = 0;
    if (sys::ioctl(fd, FIONREAD, &queued) != 0) return false;
    if (sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
    // What arrived between the two questions counts as read for a moment: ask until nothing did.
    if (sys::ioctl(fd, FIONREAD, &again) != 0) return false;
    if (again != queued) continue;
    *bytes = info.tcpi_bytes_received - static_cast<std::uint64_t>(queued);
    if (fin_counted(s, info)) --*bytes;
    return true;
  }
}

// A process that was killed may have read doorbells and not said so; the kernel knows.
void recount_doorbells(int fd, Socket& s) {
  std::uint64_t read = 0;
  if ((state_of(s.theirs()) & kSending) == 0 || !read_by_tcp(fd, s, &read)) return;
  const std::uint64_t before = s.theirs().words[kSwitchAt].load(std::memory_order_relaxed);
  if (read <= before) return;
  auto& swallowed = s.mine().words[kSwallowed];
  const std::uint64_t bells = std::min(read - before, s.theirs().words[kDoorbells].load());
  if (bells > swallowed.load(std::memory_order_relaxed)) swallowed.store(bells, std::memory_order_relaxed);
}

bool is_set(int fd, int option_of_tcp) {
  int value = 0;
  socklen_t size = sizeof value;
  return sys::getsockopt(fd, IPPROTO_TCP, option_of_tcp, &value, &size) == 0 && value != 0;
}

}  // namespace

bool switch_sending(int fd, Socket& s) {
  auto& mine = s.mine();
  if ((state_of(mine) & kSending) != 0) return true;
  if ((state_of(s.theirs()) & socket_face::kAttached) == 0) return false;
  KeepErrno keep;
  const Undisturbed undisturbed;
  // No send may be under way in the kernel, here or in a process that shares the socket.
  Slot& slot = *s.slot.load(std::memory_order_acquire);
  const std::int32_t me = thread_id();
  if (!Slot::try_close(slot.sends, me)) return (state_of(mine) & kSending) != 0;
  std::uint64_t bytes = 0;
  bool switched = (state_of(mine) & kSending) != 0;
  const bool over = (state_of(s.theirs()) & kLeaving) != 0 || (state_of(mine) & kGone) != 0;
  if (!switched && !over && sent_by_tcp(fd, &bytes)) {
    // Doorbells must not wait for anything. What the program has set it goes on to see.
    const int on = 1, off = 0;
    const std::uint64_t options = (is_set(fd, TCP_NODELAY) ? std::uint64_t{kNodelay} : 0) |
                                  (is_set(fd, TCP_CORK) ? std::uint64_t{kCorked} : 0);
    sys::setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off);
    sys::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    mine.words[kSwitchAt].store(bytes, std::memory_order_relaxed);
    // PAIR face.state: publishes kSwitchAt
    mine.words[kState].fetch_or(kSending | options, std::memory_order_seq_cst);
    // Whoever leaves says so and then looks whether we have switched: one of us sees the other.
    switched = (state_of(s.theirs()) & kLeaving) == 0;
    if (!switched) mine.words[kState].fetch_and(~std::uint64_t{kSending}, std::memory_order_seq_cst);
    CLAN_DEBUG("fd %d sends through the pipe after %llu bytes of TCP", fd,
               static_cast<unsigned long long>(bytes));
  }
  Slot::open(slot.sends, me);
  return switched;
}

namespace {

constexpr std::uint64_t kRingersName = ~std::uint64_t{0} << socket_face::kRinger;
constexpr std::uint64_t kRingers = socket_face::kBellsClosed - 1;
constexpr std::uint64_t kForAnotherNs = 2'000'000;       ///< how long one who rings waits for another
constexpr std::uint64_t kForNobodyNs = 100'000'000;      ///< and a leaver for one who is not named
constexpr std::uint64_t kForRingerNs = 10'000'000'000u;  ///< and for one who is, and lives

// By its name in kBells. When in doubt: yes.
bool lives(std::uint64_t bells) {
  KeepErrno keep;
  const auto thread = static_cast<pid_t>(bells >> socket_face::kRinger);
  return thread > 0 && sys::exists(thread);
}

}  // namespace

bool UntilOpen::wait(Slot::Counter& counter) {
  constexpr std::uint64_t kForKilledNs = 500'000'000;  // it may count in another pid namespace
  constexpr std::uint64_t kMostNs = 10'000'000'000u;
  sched_yield();
  if (++turns_ % 64 != 0) return true;
  KeepErrno keep;
  std::uint64_t now = counter.load(std::memory_order_acquire);
  const std::uint64_t time = monotonic_ns(), closer = now >> Slot::kCloser;
  if (closer != closer_) {
    closer_ = closer;
    since_ns_ = time;
    return true;
  }
  const std::uint64_t waited = time - since_ns_;
  if ((now & Slot::kClosed) == 0) return waited < kMostNs;
  const auto thread = static_cast<pid_t>(closer);
  const Slot& slot = *s_.slot.load(std::memory_order_acquire);
  const bool resends = &counter == &slot.sends && slot.resender.load() == thread;
  const bool killed = waited > kForKilledNs && !sys::exists(thread);
  if (!killed && (resends || waited < kMostNs)) {  // to send again may take long
    const timespec nap{0, 1'000'000};
    if (turns_ > 1024) sys::call(SYS_nanosleep, &nap, nullptr);
    return true;
  }
  if (!killed || resends) {
    log_line(
        LogLevel::kError,
        "fd %d: process or thread %d, which shares it, %s in the middle of using it; the connection is reset",
        fd_, thread, killed ? "was killed" : "is stopped");
    reset_connection(fd_);
    s_.kernel_error.store(true);
  }
  took_over_ |= counter.compare_exchange_strong(now, now & (Slot::kClosed - 1), std::memory_order_acq_rel);
  return true;
}

void Draining::wait(int fd, Socket& s) {
  UntilOpen until(fd, s);
  // Once it has moved nobody who is counted is in the kernel: he steps back, or was killed.
  while (!Slot::try_close_over(slot_->receives, me_)) {
    (void)until.wait(slot_->receives);
    slot_ = s.slot.load(std::memory_order_acquire);  // fork moves it
  }
  if (until.took_over()) recount_doorbells(fd, s);
}

Ringing::Ringing(PipePage::Face& face) : bells_(face.words[kBells]) {
  const std::uint64_t me = static_cast<std::uint64_t>(thread_id()) << socket_face::kRinger;
  std::uint64_t end = 0;
  for (std::uint64_t now = bells_.load(std::memory_order_relaxed);;) {
    if ((now & socket_face::kBellsClosed) != 0) {
      allowed_ = false;
      return;
    }
    const std::uint64_t other = now & kRingersName;
    std::uint64_t next = now + 1;
    if (other == 0) {
      next |= me;
    } else if (other != me) {  // else a signal has come between
      const std::uint64_t time = monotonic_ns();
      if (end == 0) end = time + kForAnotherNs;
      if (time < end) {
        sched_yield();
        now = bells_.load(std::memory_order_relaxed);
        continue;
      }
      if (!lives(now)) next = (now & ~kRingersName) | me;  // it was killed: its place is taken
    }
    // PAIR face.bells
    if (!bells_.compare_exchange_weak(now, next, std::memory_order_acq_rel, std::memory_order_relaxed))
      continue;
    me_ = (next & kRingersName) == me && other != me ? me : 0;
    return;
  }
}

Ringing::~Ringing() {
  if (!allowed_) return;
  std::uint64_t now = bells_.load(std::memory_order_relaxed), next;
  do {
    next = now - 1;
    if (me_ != 0 && (now & kRingersName) == me_) next &= ~kRingersName;
    // PAIR face.bells: the doorbell has been sent
  } while (!bells_.compare_exchange_weak(now, next, std::memory_order_acq_rel, std::memory_order_relaxed));
}

bool silence(PipePage::Face& face) {
  auto& bells = face.words[kBells];
  const std::uint64_t me = static_cast<std::uint64_t>(thread_id()) << socket_face::kRinger;
  const std::uint64_t start = monotonic_ns();
  std::uint64_t now =
      bells.fetch_or(socket_face::kBellsClosed, std::memory_order_acq_rel);  // PAIR face.bells
  std::uint64_t unnamed_since = 0;
  for (int turns = 1; (now & kRingers) != 0; ++turns, now = bells.load(std::memory_order_acquire)) {
    const std::uint64_t other = now & kRingersName, time = monotonic_ns();
    if (other == me || time - start > kForRingerNs) return false;
    if (other == 0) {
      if (unnamed_since == 0) unnamed_since = time;
      if (time - unnamed_since > kForNobodyNs) return true;  // killed, nearly for sure
    } else if (turns % 64 == 0 && !lives(now)) {
      bells.compare_exchange_strong(now, (now & ~kRingersName) - 1, std::memory_order_acq_rel);
      continue;
    }
    sched_yield();
  }
  return true;
}

bool Patience::wait() {
  sched_yield();
  if (++turns_ % 64 != 0) return true;
  const std::uint64_t now = monotonic_ns();
  constexpr std::uint64_t kMostNs = 10'000'000'000u;
  if (end_ns_ == 0) end_ns_ = now + kMostNs;
  pollfd p{fd_, POLLRDHUP, 0};
  if (sys::poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR)) != 0) return false;
  if (now < end_ns_) return true;
  CLAN_WARN("fd %d: its pipe says what cannot be; the connection is reset", fd_);
  reset_connection(fd_);
  s_.kernel_error.store(true);
  return false;
}

namespace {

// Another thread has closed the descriptor under a call; others of the same socket may be left.
bool closed_under_us() { return errno == EBADF || errno == ENOTSOCK; }

// The same, and the number may be another file's by now.
bool still_names(int fd, const Socket& s) {
  if (hold(fd).get() == &s) return true;
  errno = EBADF;
  return false;
}

// Some descriptor of it, or -1.
int descriptor_of(Socket& s) {
  KeepErrno keep;
  struct {
    Socket* socket;
    int fd;
  } wanted{&s, -1};
  for_each_socket(
      [](int fd, Socket& one, void* argument) {
        auto* w = static_cast<decltype(wanted)*>(argument);
        if (&one == w->socket && sys::fcntl(fd, F_GETFD) >= 0) w->fd = fd;
      },
      &wanted);
  return wanted.fd;
}

void ring_doorbell(int fd, Socket& s) {
  KeepErrno keep;
  auto& face = s.mine();
  if ((state_of(s.theirs()) & kLeaving) != 0 && (state_of(face) & kGone) == 0)
    return (void)answer_leaving(fd, s);
  // Doorbells are told from the application's bytes by their number since the switch. Another thread that is
  // just sending by TCP has to be through.
  for (Patience patience(fd, s); !switch_sending(fd, s);) {
    const std::uint64_t theirs = state_of(s.theirs());
    if ((theirs & kLeaving) != 0 || (state_of(face) & kGone) != 0) return;
    if ((theirs & socket_face::kAttached) == 0 || !patience.wait()) return;
  }
  if ((state_of(s.theirs()) & socket_face::kClosed) != 0) return;
  Ringing ringing(face);
  if (!ringing) return;
  face.words[kDoorbells].fetch_add(1, std::memory_order_seq_cst);
  face.words[socket_face::kWakeups].fetch_add(1, std::memory_order_relaxed);
  const char byte = 0;
  while (sys::send(fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    const int other = closed_under_us() ? descriptor_of(s) : -1;
    if (other >= 0 && other != fd) {
      fd = other;
      continue;
    }
    face.words[kDoorbells].fetch_sub(1, std::memory_order_seq_cst);
    // EAGAIN: its queue is full of doorbells already. Else it is gone.
    if (errno != EAGAIN && !closed_under_us()) s.kernel_error.store(true);
    return;
  }
}

// After what a call has done to the pipe. Whoever shares the socket may have been killed when he had been
// told to ring and had not: the other end's wish for it is gone with him.
bool must_ring(const Socket& s, const Pipe::Done& done) {
  if (done.must_ring || !s.inherited.load(std::memory_order_relaxed)) return done.must_ring;
  const std::uint64_t bells = s.mine().words[kBells].load(std::memory_order_relaxed);
  return (bells & kRingers) != 0 && (bells & kRingersName) != 0 && !lives(bells);
}

std::size_t total(const iovec* buffers, int count) {
  std::size_t n = 0;
  for (int i = 0; i < count; ++i) n += buffers[i].iov_len;
  return n;
}

// Null buffers discard; the kernel has a flag for it.
int discarding(const iovec* buffers, int count) {
  return count > 0 && buffers[0].iov_base == nullptr && buffers[0].iov_len > 0 ? MSG_TRUNC : 0;
}

msghdr message_of(const iovec* buffers, int count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(buffers);
  message.msg_iovlen = static_cast<std::size_t>(count);
  return message;
}

// The buffers behind the first `skip` bytes, at most `most` bytes of them.
struct Part {
  iovec buffers[kMostBuffers];
  int count = 0;
  Part(const iovec* from, int n, std::size_t skip, std::size_t most = ~std::size_t{0}) {
    for (int i = 0; i < n && count < kMostBuffers && most > 0; ++i) {
      if (skip >= from[i].iov_len) {
        skip -= from[i].iov_len;
        continue;
      }
      auto* base = static_cast<char*>(from[i].iov_base);
      const std::size_t length = std::min(from[i].iov_len - skip, most);
      buffers[count++] = {base == nullptr ? nullptr : base + skip, length};
      most -= length;
      skip = 0;
    }
  }
};

// --- before the pipe -----------------------------------------------------------------------------------

}  // namespace

ssize_t left_in_tcp(int fd, Socket& s, std::size_t* certain) {
  *certain = 0;
  int queued = 0;
  if (sys::ioctl(fd, FIONREAD, &queued) != 0) return -1;
  if ((state_of(s.theirs()) & kSending) == 0) {
    // It has not switched even now, so what was queued before we looked is no doorbell.
    *certain = static_cast<std::size_t>(queued);
    return 1;
  }
  std::uint64_t read = 0;
  if (!read_by_tcp(fd, s, &read)) return -1;
  const std::uint64_t until = s.theirs().words[kSwitchAt].load(std::memory_order_relaxed);
  constexpr std::uint64_t kMostUnderWay = std::uint64_t{1} << 32;  // windows of TCP are smaller
  if (until > read + kMostUnderWay) {
    CLAN_WARN("fd %d: its pipe begins where it cannot; the connection is reset", fd);
    reset_connection(fd);
    s.kernel_error.store(true);
    errno = ECONNRESET;
    return -1;
  }
  if (read >= until) {
    s.drained.store(true, std::memory_order_release);
    CLAN_DEBUG("fd %d reads the pipe after %llu bytes of TCP", fd, static_cast<unsigned long long>(read));
    return 0;
  }
  if (sys::ioctl(fd, FIONREAD, &queued) != 0) return -1;
  *certain = std::min<std::size_t>(until - read, static_cast<std::size_t>(queued));
  return static_cast<ssize_t>(until - read);
}

void note_end(Socket& s, ssize_t n) {
  if (n == 0 && !s.shut_read.load()) s.kernel_end.store(true);  // else it is our own word
  if (n < 0 && errno != EAGAIN && errno != EINTR && !closed_under_us()) {
    s.error_taken.store(true);
    s.kernel_error.store(true);
  }
}

namespace {

// Notes the end of TCP, whatever is still to be read before it.
void look_for_end(int fd, Socket& s) {
  pollfd p{fd, POLLRDHUP, 0};
  if (sys::poll(&p, 1, 0) <= 0 || leave_alone(fd, s))
    return;  // the end of what is TCP's alone is TCP's to tell
  char byte;
  const ssize_t n = sys::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  note_end(s, n);
  if (n <= 0) return;
  if ((p.revents & POLLERR) != 0) s.kernel_error.store(true);
  if ((p.revents & POLLRDHUP) != 0) note_end(s, 0);
}

// Reads what TCP still has. >0 bytes, 0: go on with the pipe, -1 with errno (EAGAIN: nothing yet). `all`:
// those were the last of TCP's.
ssize_t receive_from_tcp(int fd, Socket& s, const iovec* buffers, int count, int flags, bool* all) {
  Draining draining(fd, s);
  if (s.drained.load(std::memory_order_acquire)) return 0;
  std::size_t certain = 0;
  const ssize_t left = left_in_tcp(fd, s, &certain);
  if (left <= 0) return left;
  int at_mark = 0;
  if (certain == 0 && (state_of(s.theirs()) & kSending) == 0 && sys::ioctl(fd, SIOCATMARK, &at_mark) == 0 &&
      at_mark != 0) {
    certain =
        ~std::size_t{0};  // FIONREAD counts up to the mark, and nobody sends urgent data but by TCP alone
  }
  if (certain == 0) {
    look_for_end(fd, s);
    // Closed before it ever switched, or after: look in the pipe as well.
    if (s.kernel_end.load() || s.kernel_error.load()) return 0;
    errno = EAGAIN;
    return -1;
  }
  Part part(buffers, count, 0, certain);
  msghdr message = message_of(part.buffers, part.count);
  const ssize_t n =
      sys::call(SYS_recvmsg, fd, &message, (flags & MSG_PEEK) | discarding(buffers, count) | MSG_DONTWAIT);
  *all = n == left && (state_of(s.theirs()) & kSending) != 0;
  return n;
}

// --- the end -------------------------------------------------------------------------------------------

// The kernel resets a connection whose reader left doorbells unread too, so its word alone does not count:
// the peer said so when it closed, or died and left bytes unread.
bool was_reset(const Socket& s) {
  if (!s.kernel_end.load() && !s.kernel_error.load()) return false;
  const std::uint64_t theirs = state_of(s.theirs());
  // Who sends by TCP may have half-closed, and read on.
  const bool died = (theirs & (kSending | kGone)) == kSending && s.pipe.unread_by_peer() > 0;
  // Who has gone, or never came, and read all doorbells, left other bytes unread.
  const bool by_tcp = ((theirs & kGone) != 0 || (theirs & socket_face::kAttached) == 0) &&
                      s.kernel_error.load() &&
                      s.theirs().words[kSwallowed].load(std::memory_order_relaxed) ==
                          s.mine().words[kDoorbells].load(std::memory_order_relaxed);
  return died || by_tcp || (theirs & kReset) != 0;
}

// The peer's TCP is closed or reset and the pipe is empty: what recv says.
ssize_t ended(Socket& s) {
  if (was_reset(s) && !s.reset_told.exchange(true)) {
    errno = ECONNRESET;
    return -1;
  }
  return 0;
}

// What the pipe has done is all; what it could not do is errno.
bool failed(const Pipe::Done& done) {
  if (done.err == 0) return false;
  errno = done.err == EPROTO ? ECONNRESET : done.err == EFAULT ? EFAULT : EAGAIN;
  return true;
}

ssize_t broken_pipe(int flags) {
  if ((flags & MSG_NOSIGNAL) == 0) {
    // To this thread, as the kernel does.
    sys::call(SYS_tgkill, ::getpid(), static_cast<pid_t>(sys::call(SYS_gettid)), SIGPIPE);
  }
  errno = EPIPE;
  return -1;
}

bool check_due(Socket& s) {
  const std::uint64_t now = monotonic_ns();
  if (now - s.checked_ns.load(std::memory_order_relaxed) < kCheckNs) return false;
  s.checked_ns.store(now, std::memory_order_relaxed);
  share_memory_anew(now);
  return true;
}

// When a blocking call gives up. `option`: SO_RCVTIMEO or SO_SNDTIMEO.
std::uint64_t deadline_of(int fd, int option) {
  timeval limit{};
  socklen_t size = sizeof limit;
  sys::getsockopt(fd, SOL_SOCKET, option, &limit, &size);
  if (limit.tv_sec == 0 && limit.tv_usec == 0) return kNoDeadline;
  return monotonic_ns() + static_cast<std::uint64_t>(limit.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(limit.tv_usec) * 1000u;
}

// For poll: until then, but not more than `most`, -1 for any. 0: it is over.
int time_left_ms(std::uint64_t deadline, int most) {
  if (deadline == kNoDeadline) return most;
  const std::uint64_t now = monotonic_ns();
  if (now >= deadline) return 0;
  const auto left =
      static_cast<int>(std::min<std::uint64_t>((deadline - now + 999'999) / 1'000'000, 1u << 30));
  return most < 0 ? left : std::min(left, most);
}

// A handler has run since the call began, while the kernel would have slept in it. Is that its end?
bool interrupts(SinceEntry& since, std::uint64_t deadline) {
  if (!since.handled()) return false;
  // With a time limit the kernel restarts nothing.
  if (since.interrupted() || deadline != kNoDeadline) return true;
  since.begin();
  return false;
}

bool goes_on(std::size_t sent, std::uint64_t deadline, SinceEntry& since);

// Sleeps in the kernel until the descriptor is readable, as a blocking recv would: signals and cancellation
// are the kernel's. `more`: bytes of the same call have been read, so it is not to begin anew after a signal;
// nor does the kernel begin one anew that has a time-out. 1: there is a byte; 0: something is to be looked at; or -1
// with errno.
int sleep_for_bytes(int fd, Socket& s, bool more, std::uint64_t deadline, SinceEntry& since) {
  const Disturbed here;
  if (interrupts(since, deadline)) {
    errno = EINTR;
    return -1;
  }
  s.mine().words[socket_face::kSleeps].fetch_add(1, std::memory_order_relaxed);
  // Memory that cannot be released yet is so by a call that wakes up for it.
  const std::int64_t release_ns = release_memory();
  if (more || deadline != kNoDeadline || release_ns >= 0) {
    pollfd p{fd, POLLIN | POLLRDHUP, 0};
    const int most = release_ns < 0 ? -1 : static_cast<int>(release_ns / 1'000'000 + 1);
    const int rc = real().poll(&p, 1, time_left_ms(deadline, most));
    if (rc == 0 && time_left_ms(deadline, 1) > 0) return 0;
    if (rc == 0) errno = EAGAIN;
    if (rc < 0 && !more && goes_on(0, deadline, since)) return 0;  // as recv() would
    return rc > 0 && still_names(fd, s) ? 0 : -1;
  }
  char byte;
  const ssize_t n = real().recv(fd, &byte, 1, MSG_PEEK);
  if (n < 0 && (errno == EINTR || errno == EAGAIN || closed_under_us())) return -1;
  if (n <= 0) note_end(s, n);
  return still_names(fd, s) ? n > 0 : -1;
}

}  // namespace

bool reads_tcp(const Socket& s) { return !s.drained.load(std::memory_order_acquire); }

bool is_nonblocking(int fd, Socket& s) {
  int known = s.nonblocking.load(std::memory_order_relaxed);
  if (known < 0 || s.inherited.load(std::memory_order_relaxed)) {
    const int flags = sys::fcntl(fd, F_GETFL);
    known = flags >= 0 && (flags & O_NONBLOCK) != 0 ? 1 : 0;
    s.nonblocking.store(known, std::memory_order_relaxed);
  }
  return known != 0;
}

bool swallow_doorbells(int fd, Socket& s, std::uint64_t limit) {
  Draining draining(fd, s);
  char bytes[64];
  auto& swallowed = s.mine().words[kSwallowed];
  for (;;) {
    const std::uint64_t had = swallowed.load(std::memory_order_relaxed);
    const std::uint64_t rung = std::min(limit, s.theirs().words[kDoorbells].load(std::memory_order_seq_cst));
    if (had >= rung) return true;
    const ssize_t n = sys::recv(fd, bytes, std::min<std::uint64_t>(rung - had, sizeof bytes), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    note_end(s, n);
    if (n <= 0) return true;
    swallowed.fetch_add(static_cast<std::uint64_t>(n), std::memory_order_relaxed);
  }
}

bool doorbells_waiting(const Socket& s) {
  return s.mine().words[kSwallowed].load(std::memory_order_relaxed) <
         s.theirs().words[kDoorbells].load(std::memory_order_relaxed);
}

std::uint64_t arrived(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  return sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 ? info.tcpi_bytes_received : 0;
}

bool others_sleep(const Socket& s) {
  return s.inherited.load(std::memory_order_relaxed) || s.data_sleepers.load() > 0 ||
         s.room_sleepers.load() > 0 || watcher_sleeps(s, 0);
}

namespace {

bool others_want_room(const Socket& s) {
  return s.room_sleepers.load() > 0 || watcher_sleeps(s, POLLOUT | POLLWRNORM);
}

bool has_ended(const Socket& s) {
  // relaxed: a hint; the record says
  return s.pipe.page().ends[1 - s.pipe.end()].sender.ended.load(std::memory_order_relaxed) == 1;
}

// Bytes at the front of the pipe, and those of TCP before them, are as many as SO_RCVLOWAT asks for, or as there
// will be.
bool enough_bytes(const Socket& s, std::size_t of_tcp = 0) {
  const auto low_water = static_cast<std::uint64_t>(s.low_water.load(std::memory_order_relaxed));
  return low_water <= 1 || of_tcp + s.pipe.readable_bytes() >= low_water || has_ended(s);
}

// Something that somebody who sleeps would want to know of.
bool worth_waking(const Socket& s) {
  const PipeFront front = s.pipe.front();
  // After kLeave, TCP's own bytes wake everybody.
  if (front != PipeFront::kNothing && front != PipeFront::kLeave &&
      (front != PipeFront::kBytes || enough_bytes(s))) {
    return true;
  }
  return others_want_room(s) && s.pipe.writable();
}

// A doorbell wakes everybody who sleeps in the kernel on this socket, but only those who get the processor
// before it is taken away. So when others may sleep, it stays as long as it has something to tell:
//
//   1 count the doorbells   2 ask for another, in the others' name   3 look into the pipe   4 drop those of 1
//
// Whatever those of 1 told of was in the pipe at 3. What came later rings again, because of 2.
bool drop_doorbells(int fd, Socket& s) {
  const std::uint64_t rung = s.theirs().words[kDoorbells].load(std::memory_order_seq_cst);
  if (!doorbells_waiting(s)) return true;
  // Not those rung since: somebody may have gone to sleep meanwhile, and they are for him.
  if (!others_sleep(s)) return swallow_doorbells(fd, s, rung), true;
  s.pipe.keep_wanted(s.inherited.load(std::memory_order_relaxed) || others_want_room(s));
  if (worth_waking(s)) return false;
  swallow_doorbells(fd, s, rung);
  return true;
}

}  // namespace

namespace {

// What the kernel has woken a thread for is a doorbell.
bool only_doorbells(const Socket& s) {
  return s.drained.load(std::memory_order_acquire) && !s.kernel_end.load() && !s.kernel_error.load() &&
         !s.back_in.load(std::memory_order_acquire) && (state_of(s.theirs()) & kLeaving) == 0;
}

// A thread that a doorbell has woken has something else to do first: it is dropped when somebody is about to sleep
// here again, which is time that nobody waits for.
bool may_lie(const Socket& s) {
  return only_doorbells(s) && (state_of(s.theirs()) & kGone) == 0 && doorbells_waiting(s) && !others_sleep(s);
}

}  // namespace

bool look_at_kernel(int fd, Socket& s) {
  if (s.back_in.load(std::memory_order_acquire)) return true;
  KeepErrno keep;
  const Undisturbed undisturbed;
  if ((state_of(s.theirs()) & kLeaving) != 0 && (state_of(s.mine()) & kGone) == 0)
    (void)answer_leaving(fd, s);
  if (!s.drained.load(std::memory_order_acquire)) {
    Draining draining(fd, s);
    std::size_t certain = 0;
    const ssize_t left = left_in_tcp(fd, s, &certain);
    if (left != 0) {
      look_for_end(fd, s);
      return true;
    }
  }
  const bool dropped = drop_doorbells(fd, s);
  look_for_end(fd, s);
  return dropped;
}

bool take_doorbells(int fd, Socket& s) {
  if (!only_doorbells(s)) return look_at_kernel(fd, s);
  KeepErrno keep;
  const Undisturbed undisturbed;
  return drop_doorbells(fd, s);
}

namespace {

// The other end took our pipe, or was about to, and has not come into it since. It will not any more after
// so many calls of ours that moved bytes; without a pipe they cost less.
void give_up_on_peer(int fd, Socket& s) {
  if ((state_of(s.theirs()) & socket_face::kAttached) == 0 && has_waited_for_peer(s)) (void)leave_alone(fd, s);
}

}  // namespace

namespace {

// The descriptor was closed under the call: the kernel would give to it what it began to wait for
// before.
ssize_t receive_after_close(Socket& s, const iovec* buffers, int count, bool peek) {
  const Pipe::Done last = s.pipe.receive(buffers, count, peek);
  const int other = must_ring(s, last) ? descriptor_of(s) : -1;
  if (other >= 0) ring_doorbell(other, s);
  errno = EBADF;
  return last.bytes > 0 ? static_cast<ssize_t>(last.bytes) : -1;
}

// One step of a wait in a blocking call, by the waiting place `at`; without one there is nothing to
// spin for. `sleep()` sees to signal handlers that have run.
template <typename Ready, typename Sleep>
void wait_for(std::optional<Waiter>* at, const SinceEntry& since, Awaited peer, Ready&& ready,
              Sleep&& sleep) {
  Waited waited = Waited::kTimedOut;
  if (at != nullptr && *at) {
    const Disturbed here;
    waited = (*at)->wait([&] { return ready() || since.handled(); }, peer, kNoDeadline, sleep);
  }
  if (waited == Waited::kTimedOut || (waited == Waited::kReady && since.handled())) (void)sleep();
}

}  // namespace

ssize_t shared_receive(int fd, Socket& s, const iovec* buffers, int count, int flags) {
  const Undisturbed undisturbed;
  SinceEntry since;
  const std::size_t wanted = total(buffers, count);
  const bool peek = (flags & MSG_PEEK) != 0;
  // How many make a blocking call return.
  const std::size_t target =
      (flags & MSG_WAITALL) != 0
          ? wanted
          : std::min(wanted, static_cast<std::size_t>(s.low_water.load(std::memory_order_relaxed)));
  std::size_t got = 0;
  std::uint64_t deadline = 0;  ///< of SO_RCVTIMEO, from the first sleep on, for the call as a whole
  auto until = [&] { return deadline != 0 ? deadline : deadline = deadline_of(fd, SO_RCVTIMEO); };
  for (;;) {
    if (peek) got = 0;  // all of it again
    // One that has gone and never sent through the pipe.
    if (reads_tcp(s) && (state_of(s.theirs()) & (kGone | kSending)) == kGone) (void)came_back(fd, s);
    bool tcp_is_peeked = false;
    if (s.back_in.load(std::memory_order_acquire)) {
      went_back(s);
      Part part(buffers, count, got);
      msghdr message = got > 0 ? message_of(part.buffers, part.count) : message_of(buffers, count);
      const bool timed = deadline != 0 && deadline != kNoDeadline;  // the kernel would start it anew
      const int more = discarding(buffers, count) | (timed || (got >= target && got > 0) ? MSG_DONTWAIT : 0);
      const Disturbed here;
      const ssize_t n = real().recvmsg(fd, &message, flags | more);
      if (!timed || peek || (n < 0 && errno != EAGAIN) || got + std::max<ssize_t>(n, 0) >= target) {
        return got > 0 ? static_cast<ssize_t>(got) + std::max<ssize_t>(n, 0) : n;
      }
      if (n == 0) return static_cast<ssize_t>(got);
      if (n > 0) {
        got += static_cast<std::size_t>(n);
      } else if (sleep_for_bytes(fd, s, true, deadline, since) < 0) {
        return got > 0 ? static_cast<ssize_t>(got) : -1;
      }
      continue;
    }
    if (!s.drained.load(std::memory_order_acquire)) {
      Part part(buffers, count, got);
      const ssize_t n = receive_from_tcp(fd, s, part.buffers, part.count, flags, &tcp_is_peeked);
      if (n > 0) {
        got += static_cast<std::size_t>(n);
        give_up_on_peer(fd, s);
        if (got == wanted || (peek && !tcp_is_peeked && got >= target)) return static_cast<ssize_t>(got);
        if (!peek) continue;  // what lies behind it in the pipe belongs to the same answer
      }
      if (s.back_in.load(std::memory_order_acquire)) continue;
      if (n < 0 && errno != EAGAIN) return got > 0 ? static_cast<ssize_t>(got) : -1;
    }
    if (s.drained.load(std::memory_order_acquire) || tcp_is_peeked || s.kernel_end || s.kernel_error) {
      Pipe::Done done;
      if (got == 0) {
        done = s.pipe.receive(buffers, count, peek);
      } else {
        Part part(buffers, count, got);
        done = s.pipe.receive(part.buffers, part.count, peek);
      }
      if (must_ring(s, done)) ring_doorbell(fd, s);
      if (s.pipe.is_large()) [[unlikely]]
        owe_memory(fd, s, s.pipe.seems_empty());
      got += done.bytes;
      if (failed(done)) return got > 0 ? static_cast<ssize_t>(got) : -1;
      if (got > 0 && got >= target) {
        // The rest may be TCP's again, and belongs to the same answer.
        if (got == wanted || peek || (state_of(s.theirs()) & kGone) == 0 || !came_back(fd, s)) {
          return static_cast<ssize_t>(got);
        }
        continue;
      }
      if (wanted == 0 && s.pipe.front() == PipeFront::kBytes) return 0;
    }
    if (s.shut_read.load(std::memory_order_relaxed)) return static_cast<ssize_t>(got);
    if (got > 0 && got >= target) return static_cast<ssize_t>(got);
    if (peek && got > 0) {
      // Fewer than it wants to see: nothing that the kernel could wait for, as some lie there already.
      const bool over = s.kernel_end.load() || s.kernel_error.load() || s.pipe.front() == PipeFront::kBroken;
      const Disturbed here;
      if (over || since.handled() || (flags & MSG_DONTWAIT) != 0 || is_nonblocking(fd, s) ||
          time_left_ms(until(), -1) == 0 || real().poll(nullptr, 0, 1) < 0) {
        return static_cast<ssize_t>(got);
      }
      look_at_kernel(fd, s);
      continue;
    }
    bool leaves = false;
    switch (s.pipe.front()) {
      case PipeFront::kBytes:
        if (s.drained.load(std::memory_order_acquire) && wanted > 0) continue;
        break;  // TCP's come first, and are on their way
      case PipeFront::kEnd:
        if (s.drained.load(std::memory_order_acquire)) return static_cast<ssize_t>(got);
        break;
      case PipeFront::kLeave:
        leaves = true;
        look_at_kernel(fd, s);
        if (came_back(fd, s)) continue;
        break;
      case PipeFront::kBroken:
        if (got > 0) return static_cast<ssize_t>(got);
        errno = ECONNRESET;
        return -1;
      default: break;
    }
    if (s.kernel_end.load() || s.kernel_error.load()) {
      if (s.pipe.front() == PipeFront::kBytes) continue;  // written before it went
      return got > 0 ? static_cast<ssize_t>(got) : ended(s);
    }
    if ((flags & MSG_DONTWAIT) != 0 || is_nonblocking(fd, s)) {
      if (got > 0) return static_cast<ssize_t>(got);
      if (check_due(s)) {
        look_at_kernel(fd, s);
        if (s.kernel_end.load() || s.kernel_error.load()) continue;
        if (!leaves && s.pipe.front() != PipeFront::kNothing) continue;
      }
      errno = EAGAIN;
      return -1;
    }
    // Wait: spin as long as it pays, then sleep in the kernel.
    int woken = 0;
    auto sleep = [&] {
      const Undisturbed again;
      if (doorbells_waiting(s)) take_doorbells(fd, s);  // that may_lie()
      {
        Sleeper sleeper(s, true, false);
        if (!s.pipe.want_data() && !reads_tcp(s) && !leaves) return false;
        woken = sleep_for_bytes(fd, s, got > 0, until(), since);
        s.pipe.fetch_ahead();
      }
      if (woken > 0 && may_lie(s)) return true;
      if (woken >= 0) woken > 0 ? take_doorbells(fd, s) : look_at_kernel(fd, s);
      return true;
    };
    wait_for(
        leaves || reads_tcp(s) ? nullptr : &s.receive_wait, since,
        Awaited{s.pipe.peer_cpu(), s.rang.load(std::memory_order_relaxed)},
        [&] { return !s.pipe.seems_empty(); }, sleep);
    if (woken < 0) {
      if (got > 0 || errno != EBADF || reads_tcp(s)) {
        return got > 0 ? static_cast<ssize_t>(got) : -1;
      }
      return receive_after_close(s, buffers, count, peek);
    }
  }
}

namespace {

// A handler has run while we slept. Had the kernel slept in send(), would it go on? It does after handlers
// with SA_RESTART. poll() does not say which it was, so all that there are have to be of that kind.
bool handlers_restart() {
  KeepErrno keep;
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    if (::sigaction(number, nullptr, &action) != 0) continue;
    const bool handled = action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
    if (handled && (action.sa_flags & SA_RESTART) == 0) return false;
  }
  return true;
}

// The sleep of a send has failed. False: so does the send.
bool goes_on(std::size_t sent, std::uint64_t deadline, SinceEntry& since) {
  if (errno != EINTR || sent > 0 || deadline != kNoDeadline || since.interrupted()) return false;
  if (!since.handled()) return handlers_restart();  // it was set past the C library
  since.begin();
  return true;
}

// Sleeps in poll(), until the send's descriptor says something, but not without looking at what has run.
int sleep_in_send(pollfd* p, int timeout_ms, SinceEntry& since) {
  const Disturbed here;
  (void)release_memory();
  if (!since.handled()) return real().poll(p, 1, timeout_ms);
  errno = EINTR;
  return -1;
}

}  // namespace

ssize_t shared_send(int fd, Socket& s, const iovec* buffers, int count, int flags) {
  if (s.rang.load(std::memory_order_relaxed)) s.pipe.fetch_ahead();  // it seldom sends
  const Undisturbed undisturbed;
  SinceEntry since;
  const std::size_t wanted = total(buffers, count);
  const bool may_wait = (flags & MSG_DONTWAIT) == 0;
  // A send that may wait for a reader that reads need not fill all that TCP would take.
  PipeRoom room = PipeRoom::kWindow;
  std::size_t sent = 0;
  int nap_ms = 1;
  Patience ending(fd, s);
  std::uint64_t deadline = 0;  ///< of SO_SNDTIMEO, from the first sleep on
  UntilOpen until(fd, s);
  for (;;) {
    const auto& sender = s.pipe.page().ends[s.pipe.end()].sender;
    const bool gone = (state_of(s.mine()) & kGone) != 0;
    if (gone && sent > 0) return static_cast<ssize_t>(sent);
    if (gone && resends(fd, s)) {
      if (!may_wait || is_nonblocking(fd, s)) {
        errno = EAGAIN;
        return -1;
      }
      const Disturbed here;
      sys::poll(nullptr, 0, 1);
      continue;
    }
    // Left unread, they would make our death a reset, which drops what we have sent by TCP.
    if (gone && doorbells_waiting(s)) look_at_kernel(fd, s);
    if (gone || !switch_sending(fd, s)) {
      // Still by TCP, or again. The counter keeps the switch from happening under us.
      Slot& slot = *s.slot.load(std::memory_order_acquire);
      const bool waits = may_wait && !is_nonblocking(fd, s);
      {
        const Slot::UnderWay counted(slot.sends);
        if (!counted) {
          (void)until.wait(slot.sends);
          continue;
        }
        if (gone) {
          const msghdr message = message_of(buffers, count);
          const Disturbed here;
          return real().sendmsg(fd, &message, flags);
        }
        if ((state_of(s.mine()) & kSending) != 0) continue;
        Part part(buffers, count, sent);
        const msghdr message = message_of(part.buffers, part.count);
        const long n =
            sys::call(SYS_sendmsg, fd, &message, flags | MSG_DONTWAIT | (sent > 0 ? MSG_NOSIGNAL : 0));
        // Room in TCP, or in the pipe if we have moved by then, is an edge after this.
        if (n < static_cast<long>(wanted - sent)) s.full.fetch_add(1, std::memory_order_relaxed);
        if (n < 0 && (errno != EAGAIN || !waits)) return sent > 0 ? static_cast<ssize_t>(sent) : -1;
        if (n > 0) {
          sent += static_cast<std::size_t>(n);
          give_up_on_peer(fd, s);
        }
        if (sent == wanted || !waits) return static_cast<ssize_t>(sent);
      }
      // Not in the kernel's send: who reads here meanwhile may have to ring for room, and for that to switch;
      // the peer may read nothing until then.
      if (deadline == 0) deadline = deadline_of(fd, SO_SNDTIMEO);
      const int timeout = time_left_ms(deadline, kLongestNapMs);
      if (timeout == 0) {
        if (sent > 0) return static_cast<ssize_t>(sent);
        errno = EAGAIN;
        return -1;
      }
      pollfd p{fd, POLLOUT, 0};
      if (sleep_in_send(&p, timeout, since) < 0 && !goes_on(sent, deadline, since)) {
        return sent > 0 ? static_cast<ssize_t>(sent) : -1;
      }
      continue;
    }
    if (sender.ended.load(std::memory_order_relaxed) == 1) {
      return sent > 0 ? static_cast<ssize_t>(sent) : broken_pipe(flags);
    }
    if ((state_of(s.theirs()) & kLeaving) != 0) {
      look_at_kernel(fd, s);
    } else if (!s.rang.load(std::memory_order_relaxed) && check_due(s)) {  // else the doorbell tells
      // Only asks: a doorbell read here is one that another thread, asleep for bytes, does not see any more.
      KeepErrno keep;
      pollfd p{fd, POLLRDHUP, 0};
      if (sys::poll(&p, 1, 0) > 0 && p.revents != 0) look_at_kernel(fd, s);
    }
    if (s.kernel_end.load() || s.kernel_error.load()) {
      if (sent > 0) return static_cast<ssize_t>(sent);
      if (was_reset(s)) {
        if (s.reset_told.exchange(true)) return broken_pipe(flags);
        errno = ECONNRESET;
        return -1;
      }
      // Nobody reads the pipe any more. The kernel knows what is to be said, and when.
      s.kernel_says.store(true);
      const msghdr message = message_of(buffers, count);
      const Disturbed here;
      return real().sendmsg(fd, &message, flags);
    }
    Pipe::Done done;
    if (sent == 0) {
      done = s.pipe.send(buffers, count, room);
    } else {
      Part part(buffers, count, sent);
      done = s.pipe.send(part.buffers, part.count, room);
    }
    if (done.err == EPIPE) {  // ended meanwhile, or on its way back to TCP
      if ((state_of(s.mine()) & kGone) != 0) continue;
      if ((!may_wait || is_nonblocking(fd, s)) && sender.ended.load() != 1) {
        if (sent > 0) return static_cast<ssize_t>(sent);
        s.full.fetch_add(1, std::memory_order_relaxed);
        errno = EAGAIN;
        return -1;
      }
      if (!ending.wait()) return sent > 0 ? static_cast<ssize_t>(sent) : broken_pipe(flags);
      continue;
    }
    const bool rings = must_ring(s, done);
    if (rings) {
      ring_doorbell(fd, s);
      if (s.kernel_error.load() && sent == 0) continue;  // nobody is there who could read it
    }
    if (s.rang.load(std::memory_order_relaxed) != rings) s.rang.store(rings, std::memory_order_relaxed);
    if (s.pipe.is_large()) [[unlikely]]
      owe_memory(fd, s, false);
    sent += done.bytes;
    if (failed(done)) return sent > 0 ? static_cast<ssize_t>(sent) : -1;
    if (sent == wanted) return static_cast<ssize_t>(sent);
    const bool waits = may_wait && !is_nonblocking(fd, s);
    if (room == PipeRoom::kWindow && !waits) {
      room = PipeRoom::kWhole;
      continue;
    }
    if (done.bytes > 0) continue;
    s.full.fetch_add(1, std::memory_order_relaxed);
    if (!waits) {
      if (sent > 0) return static_cast<ssize_t>(sent);
      look_at_kernel(fd, s);
      if (s.kernel_end.load() || s.kernel_error.load()) continue;
      errno = EAGAIN;
      return -1;
    }
    bool over = false;
    auto sleep = [&] {
      const Undisturbed again;
      const bool naps = others_sleep(s);  // who may take the doorbell for our room with them
      // Whoever sleeps here for the peer's bytes needs the doorbells.
      const bool left_to_others = doorbells_waiting(s) && !look_at_kernel(fd, s);
      std::optional<Sleeper> sleeper(std::in_place, s, false, true);
      if (!s.pipe.want_room(room)) return false;
      s.mine().words[socket_face::kSleeps].fetch_add(1, std::memory_order_relaxed);
      // Room is announced by a doorbell too. Bytes of TCP that the application has not read yet
      // would make this return at once, so then only a short nap is taken.
      if (deadline == 0) deadline = deadline_of(fd, SO_SNDTIMEO);
      pollfd p{fd, POLLIN | POLLRDHUP, 0};
      int most = -1;
      if (reads_tcp(s) || s.kernel_end.load() || naps || left_to_others) {
        p.events = 0;
        most = nap_ms = std::min(nap_ms * 2, kLongestNapMs);
      }
      if (room == PipeRoom::kWindow) most = 1;
      const int timeout = time_left_ms(deadline, most);
      if (timeout == 0) {
        errno = EAGAIN;
        over = true;
        return false;
      }
      const int woken = sleep_in_send(&p, timeout, since);
      if (woken == 0) room = PipeRoom::kWhole;  // it does not read
      sleeper.reset();
      over = (woken < 0 && !goes_on(sent, deadline, since)) || !still_names(fd, s);
      if (!over) look_at_kernel(fd, s);
      return true;
    };
    wait_for(
        &s.send_wait, since, Awaited{s.pipe.peer_cpu()}, [&] { return s.pipe.writable(room); },
        sleep);
    if (over) return sent > 0 ? static_cast<ssize_t>(sent) : -1;
  }
}

int take_error(int fd, Socket& s) {
  look_at_kernel(fd, s);
  int error = 0;
  socklen_t size = sizeof error;
  sys::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (s.back_in.load(std::memory_order_acquire) || s.kernel_says.load()) return error;
  return was_reset(s) && !s.reset_told.exchange(true) ? ECONNRESET : 0;
}

void shared_close(int fd, Socket& s, bool others) {
  KeepErrno keep;
  // What the kernel does at the last close is a matter of the open file, whoever closes last.
  linger lingers{};
  socklen_t size = sizeof lingers;
  sys::getsockopt(fd, SOL_SOCKET, SO_LINGER, &lingers, &size);
  const bool at_once = lingers.l_onoff != 0 && lingers.l_linger == 0;
  if (at_once) s.mine().words[kState].fetch_or(kReset, std::memory_order_acq_rel);
  if (s.left_at_exit.load()) return;
  if (s.mine().words[socket_face::kHolders].load() > 1) leave_to_others(fd, s);
  // Others go on, or will when they follow.
  if (s.mine().words[socket_face::kHolders].fetch_sub(1) != 1 || others) return;
  // TCP answers bytes that nobody will read with a reset, and so must we; doorbells are not such bytes.
  const bool unread = bytes_to_read(fd, s) > 0 && !s.kernel_end.load();
  const std::uint64_t reset = unread ? std::uint64_t{kReset} : 0;
  s.mine().words[kState].fetch_or(socket_face::kClosed | reset, std::memory_order_acq_rel);
  look_at_kernel(fd, s);
  swallow_doorbells(fd, s);  // nobody is left who could sleep for them, and unread they would make a reset
  // The kernel's word comes in a moment; a peer that looks at the pipe sees this one at once, behind all bytes. Not
  // while a call is under way, which goes on until it returns.
  if (!unread && !at_once && s.refs.load() == 1 && (state_of(s.mine()) & (kSending | kGone)) == kSending &&
      (state_of(s.theirs()) & kLeaving) == 0) {
    (void)s.pipe.end_sending();
  }
  if (unread) {
    const linger now{1, 0};
    sys::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
}

int shared_shutdown(int fd, Socket& s, int how) {
  const Undisturbed undisturbed;
  if (how == SHUT_RD || how == SHUT_RDWR) s.shut_read.store(true);
  if (how == SHUT_WR || how == SHUT_RDWR) {
    const auto& sender = s.pipe.page().ends[s.pipe.end()].sender;
    Patience patience(fd, s);
    do {
      if ((state_of(s.mine()) & kGone) != 0 || !switch_sending(fd, s)) {
        // Our bytes go by TCP, and so does their end.
        while (resends(fd, s)) {
          const Disturbed here;
          sys::poll(nullptr, 0, 1);
        }
        return real().shutdown(fd, how);
      }
      if (must_ring(s, s.pipe.end_sending())) ring_doorbell(fd, s);
      // Else just going back.
    } while (sender.ended.load(std::memory_order_relaxed) != 1 && patience.wait());
  }
  // Whoever sleeps on this descriptor here has to notice.
  if (how != SHUT_WR) return real().shutdown(fd, SHUT_RD);
  return 0;
}

bool sends_tcp(const Socket& s) { return (state_of(s.mine()) & (kSending | kGone)) != kSending; }

short readiness(int fd, Socket& s, bool look) {
  const Undisturbed undisturbed;
  if (look) look_at_kernel(fd, s);
  KeepErrno keep;
  const bool reads_kernel = s.back_in.load(std::memory_order_acquire) || came_back(fd, s);
  const bool by_tcp = sends_tcp(s);  // perhaps only since then
  short ready = 0;
  bool hung_up = false;
  if (reads_kernel || by_tcp) {
    pollfd p{fd, static_cast<short>((reads_kernel ? POLLIN | POLLRDHUP : 0) | (by_tcp ? POLLOUT : 0)), 0};
    if (sys::poll(&p, 1, 0) > 0) ready = p.revents;
    if (resends(fd, s)) ready &= static_cast<short>(~POLLOUT);
    if (reads_kernel) return ready;
    hung_up = (ready & POLLHUP) != 0;  // both ways shut, as far as TCP knows
    ready &= POLLOUT;
  }
  const bool gone = s.kernel_end.load() || s.kernel_error.load();
  if (!s.drained.load(std::memory_order_acquire)) {
    std::size_t certain = 0;
    Draining draining(fd, s);
    if (!s.drained.load(std::memory_order_acquire) && left_in_tcp(fd, s, &certain) != 0 && certain > 0 &&
        enough_bytes(s, certain)) {
      ready |= POLLIN;
    }
  }
  if (s.drained.load(std::memory_order_acquire)) {
    const PipeFront front = s.pipe.front();
    const bool enough = front != PipeFront::kBytes || enough_bytes(s);
    if (front != PipeFront::kNothing && front != PipeFront::kLeave && enough) ready |= POLLIN;
    // As in TCP, the end is known before the bytes in front of it are read.
    if (has_ended(s)) ready |= POLLRDHUP;
    if (front == PipeFront::kBroken) ready |= POLLERR | POLLHUP;
  }
  if (gone) {
    ready |= POLLIN | POLLRDHUP;
    pollfd p{fd, 0, 0};
    if (was_reset(s)) {
      ready |= POLLERR | POLLHUP;
    } else if (s.kernel_says.load() && sys::poll(&p, 1, 0) > 0) {
      ready |= static_cast<short>(p.revents & (POLLERR | POLLHUP));
    }
  }
  if (s.shut_read.load(std::memory_order_relaxed)) ready |= POLLIN | POLLRDHUP;
  const bool ended_here = s.pipe.page().ends[s.pipe.end()].sender.ended.load(std::memory_order_relaxed) == 1;
  if ((ended_here || hung_up) && ((ready & POLLRDHUP) != 0)) ready |= POLLHUP;
  if (!by_tcp && (gone || ended_here || s.pipe.writable())) ready |= POLLOUT;
  return ready;
}

bool prepare_sleep(Socket& s, short events) {
  const Undisturbed undisturbed;
  // Both wishes, whatever becomes of the first: bytes may lie there that are not what the caller waits for.
  bool sleeps = true;
  if ((events & (POLLIN | POLLRDNORM | POLLRDHUP)) != 0 && !s.pipe.want_data()) {
    sleeps = !s.drained.load(std::memory_order_acquire);
  }
  if ((events & (POLLOUT | POLLWRNORM)) != 0 && !sends_tcp(s) && !s.pipe.want_room()) sleeps = false;
  return sleeps;
}

int bytes_to_read(int fd, Socket& s) {
  int n = 0;
  KeepErrno keep;
  if (s.back_in.load(std::memory_order_acquire)) return sys::ioctl(fd, FIONREAD, &n) == 0 ? n : 0;
  const std::uint64_t theirs = state_of(s.theirs());
  Draining draining(fd, s);
  bool all_of_tcp = s.drained.load(std::memory_order_acquire);
  if (!all_of_tcp) {
    std::size_t certain = 0;
    const ssize_t left = left_in_tcp(fd, s, &certain);
    if (left > 0) n = static_cast<int>(certain);
    all_of_tcp = left >= 0 && static_cast<std::size_t>(left) == certain && (theirs & kSending) != 0;
  }
  if (!all_of_tcp) return n;
  const bool more_by_tcp = (theirs & kGone) != 0 && s.drained.load(std::memory_order_acquire);
  int queued = 0;
  if (more_by_tcp && sys::ioctl(fd, FIONREAD, &queued) == 0) {
    const std::uint64_t rung = s.theirs().words[kDoorbells].load(std::memory_order_relaxed);
    const std::uint64_t bells = rung - s.mine().words[kSwallowed].load(std::memory_order_relaxed);
    if (static_cast<std::uint64_t>(queued) > bells) n += queued - static_cast<int>(bells);
  }
  return n + static_cast<int>(std::min<std::uint64_t>(s.pipe.readable_bytes(), 1u << 30));
}

}  // namespace clan::preload
