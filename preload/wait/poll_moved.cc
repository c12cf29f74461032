#include "wait/poll_moved.h"

#include <alloca.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <utility>

#include "clan/detail/clock.h"
#include "clan/face/wait.h"
#include "kernel/sock_diag.h"
#include "os/scratch.h"
#include "os/signals.h"
#include "os/sys.h"
#include "stream/ending.h"
#include "stream/glance.h"
#include "stream/going_back.h"
#include "stream/poll_tcp.h"
#include "stream/readiness.h"
#include "stream/remote_sleep.h"
#include "table/fd_table.h"
#include "tcp/tcp_backlog.h"
#include "wait/asleep.h"
#include "wait/epoll_set.h"
#include "wait/kernel_wait.h"
#include "wait/set_sleep.h"

namespace clan::preload {
namespace {

constexpr nfds_t kOnStack = 256;
/// Naps of a thread that gets no news of room, each twice as long as the one before.
constexpr std::int64_t kFirstNapNs = 1'000'000, kLongestNapNs = 16'000'000;

// One call of poll(). `copy` is what the kernel is asked, and answers; behind it is room for what
// else is slept on.
class MovedPoll {
 public:
  MovedPoll(pollfd* fds, pollfd* copy, nfds_t count, std::int64_t timeout_ns,
            const KernelPoll& sleep)
      : fds_(fds),
        copy_(copy),
        count_(count),
        at_once_(timeout_ns == 0),
        deadline_(timeout_ns < 0 ? kNoDeadline
                                 : monotonic_ns() + static_cast<std::uint64_t>(timeout_ns)),
        sleep_(sleep) {}

  int run() {
    for (;;) {
      const PeerHint peers = prepare_copy();
      const int found = look(Kernel::kNotAsked);
      if (found > 0 && plain_ == 0 && moved_ == 1) return found;
      if (found > 0 || at_once_) {
        if (const std::optional<int> all = look_at_everything(found)) return *all;
        continue;  // another thread has taken it
      }
      if (since_.handled()) return interrupted();
      if (const std::optional<int> answered = wait(peers)) return *answered;
    }
  }

 private:
  enum class Kernel { kNotAsked, kHasAnswered };

  static int interrupted() {
    errno = EINTR;
    return -1;
  }
  SocketRef held(nfds_t i) const { return fds_[i].fd >= 0 ? acquire(fds_[i].fd) : SocketRef(); }

  PeerHint prepare_copy();
  int look(Kernel kernel);
  void answer_moved(nfds_t i, Socket& s, Kernel kernel);
  bool answer_set(nfds_t i);
  int snapshot(int before);
  std::optional<int> look_at_everything(int found);
  std::optional<int> wait(const PeerHint& peers);
  bool there();
  bool beyond();
  bool ask_kernel_of(nfds_t i, const Asleep& one);
  bool knows_already(nfds_t i, Socket& s);
  std::int64_t longest_nap();
  bool sleep_in_kernel();
  bool prepare_all(SmallVector<Asleep>& asleep, bool* ready);

  pollfd* const fds_;
  pollfd* const copy_;
  const nfds_t count_;
  const bool at_once_;
  const std::uint64_t deadline_;
  const KernelPoll& sleep_;
  const SignalSnapshot since_;

  // descriptors that the kernel has to be asked of, and that have moved
  nfds_t plain_ = 0, moved_ = 0;
  // of what look() has found, and the kernel need not have known of what happened before
  int moved_ready_ = 0;
  bool bells_are_new_ = false, kernel_failed_ = false, kernel_told_ = false;
  const BellSleep* bell_ = nullptr;  // that is slept on, or was rung in the sleep
  nfds_t bell_of_ = 0;
  bool remote_ = false;     // one of them is, or was, to another host
  bool drains_ = false;     // bytes lie in TCP that nobody asks for
  bool is_untold_ = false;  // one of them reads no more: the kernel cannot report room
  std::int64_t nap_ns_ = kFirstNapNs;
  std::int64_t longest_ = kNoCap;  // in the kernel
  std::optional<int> answered_;
};

// What has moved is watched for doorbells.
PeerHint MovedPoll::prepare_copy() {
  plain_ = moved_ = 0;
  PeerHint peers{0, true};
  for (nfds_t i = 0; i < count_; ++i) {
    const SocketRef s = held(i);
    copy_[i] = fds_[i];
    copy_[i].revents = 0;
    if (s && s->shared()) {
      const PeerHint peer = awaited_of(*s);
      peers.cpu = moved_++ == 0 || peer.cpu == peers.cpu ? peer.cpu : 0;
      peers.slept &= peer.slept;
      remote_ |= is_remote(*s);
      // Urgent data is the kernel's to tell, and as long as the peer sends by TCP all that it does.
      constexpr short kNews = POLLIN | POLLRDNORM | POLLRDHUP;
      const bool by_tcp = reads_tcp(*s) && (fds_[i].events & kNews) != 0;
      if ((fds_[i].events & POLLPRI) != 0 || by_tcp) ++plain_;
      copy_[i].events = static_cast<short>(POLLIN | POLLRDHUP | (fds_[i].events & POLLPRI));
    } else if (fds_[i].fd >= 0) {
      ++plain_;
    }
  }
  return peers;
}

void MovedPoll::answer_moved(nfds_t i, Socket& s, Kernel kernel) {
  const bool from_kernel = kernel == Kernel::kHasAnswered;
  bool ask = from_kernel && copy_[i].revents != 0;
  if (ask && copy_[i].revents == POLLIN) {
    (void)take_doorbells(fds_[i].fd, s);
    ask = false;
  }
  const int more = from_kernel ? copy_[i].revents & POLLPRI : 0;
  short ready = poll_answer(fds_[i].fd, s, fds_[i].events, ask);
  // What holds anyway, as room does, says nothing of a reset; behind bytes a reset shows only now
  // and then. relaxed: a hint
  const bool holds = has_ended(s) || s.shut_read.load(std::memory_order_relaxed) ||
                     (ready & ~(POLLOUT | POLLWRNORM)) == 0;
  if (!from_kernel && ready != 0 && (holds || check_due(s)))
    ready = poll_answer(fds_[i].fd, s, fds_[i].events, true);
  fds_[i].revents = static_cast<short>(ready | more);
  if (!s.shared()) {  // it has gone back to TCP just now: the kernel answers what was asked
    copy_[i].events = fds_[i].events;
    (void)sys::poll(fds_ + i, 1, 0);
  }
}

// True: an epoll set with what has moved in it. What the kernel says of a set may be doorbells
// only.
bool MovedPoll::answer_set(nfds_t i) {
  if (fds_[i].fd < 0 || (fds_[i].events & (POLLIN | POLLRDNORM)) == 0 || !set_moved(fds_[i].fd))
    return false;
  const bool ready =
      fds_[i].revents != 0 ? !set_has_only_doorbells(fds_[i].fd) : set_ready(fds_[i].fd);
  fds_[i].revents = ready ? static_cast<short>(fds_[i].events & (POLLIN | POLLRDNORM)) : short{0};
  return true;
}

// What the pipes say, and what the kernel has said in `copy`. How many are ready.
int MovedPoll::look(Kernel kernel) {
  const bool from_kernel = kernel == Kernel::kHasAnswered;
  int n = 0;
  moved_ready_ = 0;
  for (nfds_t i = 0; i < count_; ++i) {
    const SocketRef s = held(i);
    bool here = false;
    if (s && s->shared()) {
      here = true;
      answer_moved(i, *s, kernel);
    } else {
      // It may just have gone back: only what was asked for.
      fds_[i].revents = from_kernel
                            ? static_cast<short>(copy_[i].revents & (fds_[i].events | kAlways))
                            : short{0};
    }
    here |= answer_set(i);
    n += fds_[i].revents != 0;
    // If the kernel has reported a socket's doorbell, the bytes were written before it answered.
    const bool told = (copy_[i].revents & POLLIN) != 0 || (bell_ != nullptr && bell_of_ == i);
    const bool known = bells_are_new_ && from_kernel && told;
    moved_ready_ += here && fds_[i].revents != 0 && !known;
  }
  return n;
}

// The kernel has answered in `copy`. Whatever happened before an event that the call reports is
// reported too: so what has moved is checked after the kernel, and both again as long as that finds
// more of it. `before`: so many of what has moved had been found before the kernel was asked.
int MovedPoll::snapshot(int before) {
  int n = look(Kernel::kHasAnswered);
  bells_are_new_ = false;
  for (nfds_t turns = 0; moved_ready_ > before && turns < count_; ++turns) {
    before = moved_ready_;
    if (plain_ > 0 && sys::poll(copy_, count_, 0) < 0) break;
    n = look(Kernel::kHasAnswered);
  }
  return n;
}

// Everything at once, without waiting. Where nothing holds yet a signal may, that the mask of the
// call lets in.
std::optional<int> MovedPoll::look_at_everything(int found) {
  if (found == 0 || plain_ > 0) {
    const int rc = found > 0 ? sys::poll(copy_, count_, 0) : sleep_(copy_, count_, 0);
    if (rc < 0) return found > 0 ? found : rc;
  }
  const int all = snapshot(found);
  if (all > 0 || at_once_) return all;
  return std::nullopt;
}

bool MovedPoll::there() {
  if (since_.handled()) return true;
  for (nfds_t i = 0; i < count_; ++i) {
    const SocketRef s = held(i);
    if (s && s->shared() && poll_answer(fds_[i].fd, *s, fds_[i].events, false) != 0) return true;
    if (!s && fds_[i].fd >= 0 && set_moved(fds_[i].fd) && set_ready(fds_[i].fd)) return true;
  }
  return false;
}

bool MovedPoll::beyond() {
  if (remote_ && fetch_packets() && there()) return true;
  if (plain_ == 0 || kernel_failed_) return false;
  const int rc = sys::poll(copy_, count_, 0);
  kernel_failed_ = rc < 0;
  kernel_told_ = rc > 0 && look(Kernel::kHasAnswered) > 0;
  return kernel_told_;
}

// What the kernel has reported, and would go on reporting. True: the call is to report it; perhaps
// only the check of the doorbells just now has shown it.
bool MovedPoll::knows_already(nfds_t i, Socket& s) {
  const bool is_over = s.kernel_end || s.kernel_error;
  // relaxed: the call into the kernel came before
  const bool shut = s.shut_read.load(std::memory_order_relaxed);
  if (!is_over && !shut) return false;
  if (is_over) {
    copy_[i].fd = -1;
  } else {
    copy_[i].events &= static_cast<short>(~(POLLIN | POLLRDHUP));
    is_untold_ = true;
  }
  return poll_answer(fds_[i].fd, s, fds_[i].events, false) != 0;
}

// Asks the kernel about a socket that sleeps. True: it is ready.
bool MovedPoll::ask_kernel_of(nfds_t i, const Asleep& one) {
  Socket* const s = one.socket();
  // It has gone back: what to ask the kernel is another question.
  if (s == nullptr) return copy_[i].events != fds_[i].events;
  // Bytes of TCP that are not asked for would keep the kernel from sleeping, and so would doorbells
  // that are left to others.
  if (one.left_to_others() || (reads_tcp(*s) && (fds_[i].events & (POLLIN | POLLRDNORM)) == 0)) {
    copy_[i].events &= static_cast<short>(~POLLIN);
    drains_ = true;
  }
  const bool ready = knows_already(i, *s);
  if ((fds_[i].events & (POLLOUT | POLLWRNORM)) != 0 &&
      poll_answer(fds_[i].fd, *s, POLLOUT, false) == 0 && sends_tcp(*s) && !is_going_back(*s)) {
    copy_[i].events |= POLLOUT;
  }
  return ready;
}

// Says that this thread is about to sleep for all of them. False: no memory.
bool MovedPoll::prepare_all(SmallVector<Asleep>& asleep, bool* ready) {
  drains_ = is_untold_ = false;
  longest_ = kNoCap;
  bell_ = nullptr;
  for (nfds_t i = 0; i < count_ && !*ready; ++i) {
    if (fds_[i].fd < 0) continue;
    const Asleep* const one =
        asleep.add(fds_[i].fd, fds_[i].events, bell_ == nullptr && count_ <= kOnStack);
    if (one == nullptr) return false;
    *ready = one->ready();
    *ready |= ask_kernel_of(i, *one);
    if (one->bell() != nullptr) bell_ = one->bell(), bell_of_ = i;
    longest_ = std::min(longest_, one->longest());
  }
  return true;
}

// kNoCap: the kernel reports all that is waited for.
std::int64_t MovedPoll::longest_nap() {
  if (drains_) return kFirstNapNs;
  if (!is_untold_) return longest_;
  return std::min(longest_, std::exchange(nap_ns_, std::min(nap_ns_ * 2, kLongestNapNs)));
}

bool MovedPoll::sleep_in_kernel() {
  bool ready = false;
  PacketSleep packets(remote_,
                      count_ <= kOnStack ? PacketSleep::May::kFetch : PacketSleep::May::kNotFetch);
  if (packets.has_come()) return false;
  std::optional<SmallVector<Asleep>> asleep(std::in_place, count_);
  if (!prepare_all(*asleep, &ready)) {
    errno = ENOMEM;
    answered_ = -1;
    return false;
  }
  if (ready) return false;
  const std::uint64_t now = deadline_ == kNoDeadline ? 0 : monotonic_ns();
  const auto before_deadline = static_cast<std::int64_t>(std::max(deadline_, now) - now);
  const std::int64_t left = deadline_ == kNoDeadline ? -1 : before_deadline;
  const std::int64_t most = longest_nap();
  const std::int64_t nap = most != kNoCap && (left < 0 || left > most) ? most : left;
  pollfd* const last = copy_ + count_ + packets.watch(copy_ + count_);
  const nfds_t bells = bell_ != nullptr ? bell_->watch(last) : 0;
  const int rc = sleep_(copy_, static_cast<nfds_t>(last - copy_) + bells, nap);
  if (bells == 0 || rc <= 0 || !bell_->rung(last)) bell_ = nullptr;
  if (rc < 0) {
    answered_ = rc;
    return false;
  }
  const bool fetches = rc > 0 && packets.ready(copy_ + count_);
  if (fetches) {
    asleep.reset();
    (void)packets.fetch();
  }
  bells_are_new_ = !drains_;  // none lay there when the thread went to sleep
  const int n = snapshot(0);
  if (n > 0 || (left >= 0 && monotonic_ns() >= deadline_)) answered_ = n;
  return n > 0 || !fetches;  // else the wait goes on
}

// Nothing: look again.
std::optional<int> MovedPoll::wait(const PeerHint& peers) {
  kernel_failed_ = kernel_told_ = false;
  answered_.reset();
  const auto asleep = [this] { return sleep_in_kernel(); };
  const WaitResult waited =
      (remote_ ? waiter_of_remote_poll() : waiter_of_poll())
          .wait([this] { return there(); }, peers, deadline_, asleep, [this] { return beyond(); });
  if (waited == WaitResult::kReady) {
    if (const int n = kernel_told_ ? snapshot(0) : 0; n > 0) return n;
    if (since_.handled()) return interrupted();
  } else if (waited == WaitResult::kTimedOut) {
    (void)sleep_in_kernel();
  }
  return answered_;
}

}  // namespace

int poll_moved(pollfd* fds, nfds_t count, std::int64_t timeout_ns, const KernelPoll& sleep) {
  std::optional<Scratch> scratch;
  const std::size_t bytes = (count + PacketSleep::kMost + 1) * sizeof(pollfd);
  auto* copy = static_cast<pollfd*>(count <= kOnStack ? alloca(bytes) : nullptr);
  if (copy == nullptr) copy = scratch.emplace(bytes).as<pollfd>();
  if (copy != nullptr) return MovedPoll(fds, copy, count, timeout_ns, sleep).run();
  errno = ENOMEM;
  return -1;
}

}  // namespace clan::preload
