#include "wait/waiting.h"

#include <poll.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "clan/detail/clock.h"
#include "clan/face/pipe.h"
#include "clan/face/wait.h"
#include "demote/demote_on_request.h"
#include "os/real.h"
#include "os/signals.h"
#include "os/sys.h"
#include "os/timeout.h"
#include "state/ring_memory.h"
#include "stream/ending.h"
#include "stream/remote_sleep.h"
#include "table/buffers.h"
#include "wait/epoll_set.h"
#include "wait/gather.h"
#include "wait/ready_check.h"
#include "wait/registration.h"
#include "wait/set_lock.h"
#include "wait/shared_sets.h"
#include "wait/spin_view.h"

namespace clan::preload {
namespace {

/// how long the kernel may go unasked while a set's sockets go back
constexpr std::int64_t kOthersNs = 10'000'000;

// Whether the set is the kernel's alone; without the lock.
bool remembers_nothing(int epfd) {
  // order: after the count of plain_sleepers, see epoll_set.cc; so is what it remembers
  const Set* set = sets[epfd].load(std::memory_order_seq_cst);
  return set == nullptr || (set->epfd == epfd && set->use == nullptr &&
                            set->remembered.load(std::memory_order_seq_cst) == 0);
}

// Waits in such a set, if it is one. Sockets may be added and move meanwhile: the kernel's events
// of these are not the application's.
bool wait_for_plain(int epfd, epoll_event* events, int most, std::int64_t timeout_ns,
                    const KernelEpoll& sleep, int* n) {
  struct Counted {
    std::atomic<std::uint32_t>& sleepers;
    explicit Counted(std::atomic<std::uint32_t>& s) : sleepers(s) {
      // order: before reading what the set remembers, see epoll_set.cc
      sleepers.fetch_add(1, std::memory_order_seq_cst);
    }
    // Also when cancelled. order: after the sleep
    ~Counted() { sleepers.fetch_sub(1, std::memory_order_seq_cst); }
  };
  if (!remembers_nothing(epfd)) return false;
  reach(epfd);  // a child of fork resets its sleepers
  const std::uint64_t before = order_stamp() & PipeStamp::kTimeMask;
  {
    const Counted counted(plain_sleepers[epfd]);
    if (!remembers_nothing(epfd)) return false;
    *n = sleep(events, most, timeout_ns);
  }
  if (*n <= 0 || (remembers_nothing(epfd) && std::none_of(events, events + *n, has_our_tag)))
    return true;
  if (const Guard guard(epfd); guard) {
    *n = gather(*guard.set(), events, most, *n, before);
  } else {
    *n = without_ours(events, *n);
  }
  return true;
}

// One epoll_wait() on a set with moved sockets. `sleep(events, most, timeout_ns)` is the kernel's
// wait as the application called it.
class Wait {
 public:
  Wait(int epfd, PolledSet* polled, epoll_event* events, int most, std::int64_t timeout_ns,
       const KernelEpoll& sleep, const sigset_t* mask)
      : epfd_(epfd),
        polled_(polled),
        events_(events),
        most_(most),
        waits_(timeout_ns != 0),
        sleep_(sleep),
        mask_(mask),
        deadline_(timeout_ns < 0 ? kNoDeadline
                                 : monotonic_ns() + static_cast<std::uint64_t>(timeout_ns)) {
    if (polled != nullptr) use_.take(polled->set());
  }

  int run() {
    int told = -1;  // events from the kernel that nobody has seen yet
    std::uint64_t before = 0;
    bool interrupted = false;
    bool asks = !waits_;
    // Moved sockets go first if the kernel had its turn.
    bool first = asks && moved_ones_turn();
    for (;; first = false) {
      int n = 0;
      if (asks && !first) {
        // The application's own wait: its mask may let a pending signal in.
        asks = false;
        before = order_stamp() & PipeStamp::kTimeMask;
        told = sleep_(events_, most_, 0);
        interrupted = told < 0 && errno == EINTR;
        if (told < 0 && !interrupted) return told;
        told = std::max(told, 0);
      }
      switch (look(told, before, &n)) {
        case Next::kDone: return n;
        case Next::kGone: return sleep_(events_, most_, left_ns());  // the set was closed
        case Next::kAgain: told = n < -1 ? -1 - n : -1; continue;
        case Next::kSleep: break;
      }
      if (asks) continue;
      if (!waits_) {
        if (interrupted) errno = EINTR;
        return interrupted ? -1 : 0;
      }
      told = -1;
      n = spins_ ? spin_and_doze(&told, &before) : doze(&told, &before);
      if (n != kGoOn) return n;
    }
  }

 private:
  enum class Next { kDone, kGone, kAgain, kSleep };
  static constexpr int kGoOn = -2;

  bool moved_ones_turn() const {
    if (polled_ != nullptr) return !has_plain(polled_->set());
    const Set* set = find(epfd_);
    // relaxed: a hint, fairness alone
    return set != nullptr && !set->kernels_turn.load(std::memory_order_relaxed);
  }

  // Checks without waiting.
  Next look(int told, std::uint64_t before, int* n) {
    Set* set = nullptr;
    {
      const Guard guard = use_.get() != nullptr ? Guard(*use_.get()) : Guard(epfd_);
      set = use_.get() != nullptr ? use_.get() : guard.set();
      if (set == nullptr || (set->names == 0 && told <= 0)) return Next::kGone;
      several_ = used_by_several(*set);
      const bool takes_back = several_ && !set->taken_back;
      moved_ = set->moved > 0;
      if (told > 0) fetch_ahead(*set);
      if (told > 0 || (moved_ && !takes_back))
        *n = gather(*set, events_, most_, told, before, waits_ && std::exchange(first_, false),
                    !tried_);
      if (*n > 0) {
        use_.drop();
        return Next::kDone;
      }
      use_.take(*set);
      if (guard.owes() && !std::exchange(tried_, true)) return Next::kAgain;
      if (!takes_back) {
        spins_ = moved_ && waits_ && view_.take(*set);
        return Next::kSleep;
      }
    }
    take_back(*set);
    return Next::kAgain;
  }

  // Does doze() after spinning.
  int spin_and_doze(int* told, std::uint64_t* before) {
    Set& set = *use_.get();
    const bool plain = has_plain(set);
    bool failed = false;
    auto ready = [&] { return view_.any() || since_.handled(); };
    auto beyond = [&] {
      if (view_.remote() && fetch_packets() && view_.any()) return true;
      if (plain && !failed) {
        *before = order_stamp() & PipeStamp::kTimeMask;
        KeepErrno keep;
        *told =
            polled_ != nullptr ? polled_->ask(events_) : sys::epoll_wait(epfd_, events_, most_, 0);
        // poll() keeps reporting TCP's news of moved sockets.
        if (*told > 0 &&
            (polled_ == nullptr || !std::all_of(events_, events_ + *told, has_our_tag)))
          return true;
        failed = *told < 0;
        *told = -1;
      }
      if (!view_.rest(set)) return false;
      const Guard guard(set);
      return set.names == 0 || anything(set) || !view_.take(set);
    };
    int n = kGoOn;
    auto sleep = [&] {
      n = doze(told, before);
      return slept_;
    };
    Waiter& waiter = polled_ != nullptr ? waiter_of_poll(view_.remote())
                     : view_.remote()   ? *set.remote_waiter
                                        : *set.waiter;
    const WaitResult waited = waiter.wait(ready, view_.peers(), deadline_, sleep, beyond);
    const bool handled = waited == WaitResult::kReady && *told <= 0 && since_.handled();
    return handled || waited == WaitResult::kTimedOut ? doze(told, before) : n;
  }

  // Sleeps in the kernel. Returns kGoOn, or the answer.
  int doze(int* told, std::uint64_t* before) {
    Set& set = *use_.get();
    slept_ = false;
    if (since_.handled()) {
      errno = EINTR;
      return -1;
    }
    share_memory_anew(monotonic_ns());  // a bell's wake-ups do not, see note_checked()
    PacketSleep packets(view_.remote(), PacketSleep::May::kFetch);
    if (packets.has_come()) return kGoOn;
    std::int64_t longest = kNoCap;
    {
      const Guard guard(set);
      if (!prepare(set) || (guard.owes() && !tried_)) {
        awake(set);
        return kGoOn;
      }
      longest = longest_sleep(set);
      if (polled_ != nullptr) longest = std::min(longest, polled_->longest());
    }
    if (several_ && moved_) longest = std::min(longest, kOthersNs);
    const std::int64_t left = left_ns();
    const std::int64_t nap = longest != kNoCap && (left < 0 || left > longest) ? longest : left;
    *before = order_stamp() & PipeStamp::kTimeMask;
    bool fetches = false, over = true;
    const int n = sleep_prepared(set, packets, nap, &fetches, &over);
    tried_ = false;
    if (n < 0) return n;
    if (fetches) (void)packets.fetch();
    slept_ = n > 0 || !fetches || view_.any();
    // What the kernel keeps reporting may be nothing to the application: a timeout ends that too.
    if (left != 0 && (n > 0 || nap != left || !over)) {
      *told = n;
      return kGoOn;
    }
    const Guard guard(set);
    return gather(set, events_, most_, n, *before);
  }

  // The kernel's wait after prepare(). The thread may be cancelled there.
  int sleep_prepared(Set& set, const PacketSleep& packets, std::int64_t ns, bool* fetches,
                     bool* over) {
    struct Awake {
      Set& set;
      ~Awake() {
        KeepErrno keep;
        const Guard guard(set);
        awake(set);
      }
    } awake_after{set};
    if (polled_ != nullptr)
      return polled_->sleep(events_, ns, packets.watches() ? &packets : nullptr, fetches, over);
    return packets.watches() ? sleep_on_both(packets, ns, fetches, over)
                             : sleep_(events_, most_, ns);
  }

  // Sleeps on the set and on packets. `*fetches`: some came; `*over`: it timed out.
  int sleep_on_both(const PacketSleep& packets, std::int64_t ns, bool* fetches, bool* over) {
    pollfd both[1 + PacketSleep::kMost] = {{epfd_, POLLIN, 0}};
    const nfds_t count = 1 + packets.watch(both + 1);
    const int n = sleep_releasing(ns, [&](std::int64_t left) {
      const timespec ts = as_timespec(left < 0 ? 0 : left);
      return real().ppoll(both, count, left < 0 ? nullptr : &ts, mask_);
    });
    if (n <= 0) return n;
    *over = false;
    *fetches = packets.ready(both + 1);
    return both[0].revents != 0 ? sleep_(events_, most_, 0) : 0;
  }

  std::int64_t left_ns() const {
    if (deadline_ == kNoDeadline) return -1;
    if (!waits_) return 0;
    const std::uint64_t now = monotonic_ns();
    return now >= deadline_ ? 0 : static_cast<std::int64_t>(deadline_ - now);
  }

  const int epfd_;
  PolledSet* const polled_;
  epoll_event* const events_;
  const int most_;
  const bool waits_;
  const KernelEpoll sleep_;
  const sigset_t* const mask_;
  const std::uint64_t deadline_;
  InUse use_;
  SpinView view_;
  const SignalSnapshot since_;
  bool several_ = false, moved_ = false, spins_ = false, slept_ = false;
  bool tried_ = false;  ///< what is due was tried since the last sleep
  bool first_ = true;   ///< the first look: the kernel need not be asked
};

}  // namespace

int wait_for_events(int epfd, epoll_event* events, int most, std::int64_t timeout_ns,
                    const KernelEpoll& sleep, const sigset_t* mask) {
  if (epfd < 0 || epfd >= kMostSets || most <= 0 || events == nullptr)
    return sleep(events, most, timeout_ns);
  const std::uint64_t start = timeout_ns > 0 ? monotonic_ns() : 0;
  std::int64_t left = timeout_ns;
  for (int n; wait_for_plain(epfd, events, most, left, sleep, &n);) {
    if (n != 0 || left == 0) return n;
    if (left < 0) continue;
    left =
        std::max<std::int64_t>(timeout_ns - static_cast<std::int64_t>(monotonic_ns() - start), 0);
    if (left == 0) return 0;
  }
  Wait wait(epfd, nullptr, events, most, left, sleep, mask);
  return wait.run();
}

int wait_in(PolledSet& polled, epoll_event* events, int most, std::int64_t timeout_ns) {
  auto ask = [&polled](epoll_event* to, int, std::int64_t ns) {
    bool fetches, over;
    return polled.sleep(to, ns, nullptr, &fetches, &over);
  };
  Wait wait(-1, &polled, events, most, timeout_ns, ask, nullptr);
  return wait.run();
}

}  // namespace clan::preload
