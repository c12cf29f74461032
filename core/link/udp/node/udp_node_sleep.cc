// How threads wait at a node. A polling thread fetches packets, and tells the engine of transfers
// that have ended.
//
// One thread at a time takes charge of the socket: it sleeps in ppoll() on that, fetches what comes
// and leaves when its word has changed. So a packet wakes one thread, not the driver thread and
// then the sleeper. The others sleep as anywhere: the one in charge fires their tripwires, and
// hands the socket to the driver thread when it leaves.
//
//   in charge   the driver thread does not watch the socket; timers are the time-out of ppoll()
//   left        nobody watches the socket for one tick: the thread is most often back by then. If
//               not, the driver thread watches it from the tick on, and at once where other threads
//               sleep. A thread that keeps coming back puts the tick off: each costs it some 25 us.
//   elsewhere   a program sleeps in its own call on the sockets and an event queue's descriptor. A
//               thread that takes a packet delivers it under the mutex: what was taken before the
//               program armed here shows in the queue, which it checks afterwards; what is taken
//               later finds the queue armed; what nobody takes keeps the socket readable.
#include <poll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>

#include "base/futex.h"
#include "base/wait_call.h"
#include "clan/detail/clock.h"
#include "clan/detail/dekker.h"
#include "link/udp/node/udp_link.h"
#include "link/udp/node/udp_node.h"

namespace clan::udp {
namespace {

// How long the driver thread stays out after a thread has armed the descriptor if nothing comes,
// and how far apart two of them are in which it does.
constexpr std::uint64_t kAway = 2 * kMillisecond;
// The first tick, put off by a part of the time that a thread has served the socket. Setting a
// timer takes some 14 us on a virtual machine.
constexpr std::uint64_t kTick = kMillisecond / 2, kLongestTick = 2 * kMillisecond;
constexpr std::uint64_t kSpree = 8;
constexpr int kMostLooks = 64;  ///< in one go: others want the mutex

}  // namespace

void UdpNode::progress() {
  if (abandoned()) return;
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;  // its owner is at it
  if (poll()) kick();
}

void UdpNode::fetch() {
  if (abandoned()) return;
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || !poll()) return;
  told_ = false;
  lock.unlock();
  if (!hand_out(HandOut::kTransfers)) wake_driver();
}

// Whether what is sent may wait: a thread looks in short turns. If it stops, the next tick sends.
bool UdpNode::may_hold() const {
  // relaxed: written under the mutex
  return ticking_.load(std::memory_order_relaxed) && in_charge_ == nullptr && others_asleep_ == 0;
}

// Under the mutex, for a thread that waits. True: there are up-calls.
bool UdpNode::poll() {
  if (shut_down_) return false;
  const std::uint64_t now = monotonic_ns();
  polled_at_ = now;
  ++polls_;
  cork_.look();
  if (may_hold() && !cork_.any()) {
    send_revocations();
    (void)pump_.look(now);
  } else {
    (void)pump(now);
  }
  // Where nobody sleeps on the descriptor: this thread fetches what comes until the tick.
  if (polls_ >= kPolls && put_off_tick(now) && in_charge_ == nullptr) (void)io_->arm(false);
  note_timer();
  rouse_sleeper();
  return told_;
}

// --- ticks ---------------------------------------------------------------------------------------

// Nobody watches the socket: at each tick the driver thread checks whether a thread serves it.
void UdpNode::keep_out() {
  watch_socket(false);
  if (ticking_.load(std::memory_order_relaxed)) return;  // relaxed: written under the mutex
  ticking_.store(true, std::memory_order_relaxed);
  kept_out_since_ = monotonic_ns();
  start_ticks(kept_out_since_, kTick);
}

void UdpNode::start_ticks(std::uint64_t now, std::uint64_t first) {
  itimerspec when{};
  when.it_value.tv_nsec = static_cast<long>(first);
  when.it_interval.tv_nsec = static_cast<long>(kTick);
  (void)::timerfd_settime(timer_.get(), 0, &when, nullptr);
  timer_at_ = kNever;
  put_off_at_ = now + first / 2;
}

// A thread serves the socket: a tick that comes counts only what it does from now on.
bool UdpNode::put_off_tick(std::uint64_t now) {
  // relaxed: written under the mutex
  if (!ticking_.load(std::memory_order_relaxed) || now < put_off_at_) return false;
  polls_ = 0;
  start_ticks(now, std::clamp((now - kept_out_since_) / kSpree, kTick, kLongestTick));
  return true;
}

// --- asleep --------------------------------------------------------------------------------------

int UdpNode::sleep(const Sleep& what) {
  Lock lock(mutex_, std::defer_lock);
  if (!abandoned()) lock.lock();
  if (abandoned() || shut_down_ || in_charge_ != nullptr || on_driver_thread() || !io_->arm(true))
    return sleep_aside(lock, what);
  send_revocations();     // the tick that would may be put off for as long as threads come back
  flush(monotonic_ns());  // what it has left for its next look
  in_charge_ = &what;
  watch_socket(false);
  if (what.link != nullptr) what.link->watch(true);
  const int rc = sleep_in_charge(lock);
  if (what.link != nullptr) what.link->watch(false);
  in_charge_ = nullptr;
  ++sleeps_;
  if (shut_down_) return rc;
  if (others_asleep_ > 0 || keep_watching_) {
    hand_to_driver();
  } else {
    keep_out();
    (void)put_off_tick(monotonic_ns());
  }
  return rc;
}

// As anywhere: others fetch the packets.
int UdpNode::sleep_aside(Lock& lock, const Sleep& what) {
  const bool counts = lock.owns_lock();  // not in a forked child
  if (counts) {
    if (what.link != nullptr) what.link->watch(true);
    ++others_asleep_;
    polled_at_ = 0;
    if (!shut_down_) flush(monotonic_ns());
    if (!shut_down_ && in_charge_ == nullptr && !watching_) {
      hand_to_driver();
    } else if (!shut_down_ && (what.link != nullptr || pump_.has_more())) {
      note_timer();
    }
    lock.unlock();
  }
  const auto sleep = [&what](auto& word) { return futex_wait(word, what.seen, what.deadline_ns); };
  const int rc = !what.fds.empty()       ? sys::poll_until(what.fds, what.deadline_ns)
                 : what.count != nullptr ? what.count->commit_wait(sleep)
                                         : sleep(*what.word);
  if (!counts || abandoned()) return rc;
  lock.lock();
  --others_asleep_;
  if (what.link != nullptr) what.link->watch(false);
  return rc;
}

int UdpNode::sleep_in_charge(Lock& lock) {
  const Sleep& what = *in_charge_;
  // The caller's, the eventfd, and where packets come.
  std::array<pollfd, Sleep::kMostFds + 1 + PacketIo::kMostSources> all{};
  const std::size_t own = what.fds.size();
  std::copy(what.fds.begin(), what.fds.end(), all.begin());
  pollfd& wake = all[own];
  while (!shut_down_) {
    io_->want_room(pump_.waits_for_room());
    wake = {wake_.get(), POLLIN, 0};
    const std::span packets = std::span(all).subspan(own + 1);
    const std::span sources = packets.first(io_->sources(packets));
    const std::span fds = std::span(all).first(own + 1 + sources.size());
    charge_until_ = std::min(what.deadline_ns, pump_.next_timeout());
    // PAIR udp_node.asleep: before the last check of the word; wake_sleepers() changes, then loads
    dekker::announce(asleep_, true);
    int rc = 0;
    if (!word_has_changed()) {
      show_paths();
      lock.unlock();
      rc = sys::poll_until(fds, charge_until_);
      lock.lock();
    }
    asleep_.store(false, std::memory_order_relaxed);  // relaxed: one needless wake-up at most
    if (rc == EINTR) return rc;
    if ((wake.revents & POLLIN) != 0) drain_eventfd(wake_.get());
    if (shut_down_) return 0;
    const std::uint64_t now = monotonic_ns();
    const auto is_ready = [](const pollfd& p) { return p.revents != 0; };
    const bool come = std::any_of(sources.begin(), sources.end(), is_ready);
    if (come) io_->woken_by(sources);
    if (rc == ETIMEDOUT || come) (void)pump(now);
    if (told_) tell_in_charge(lock);
    std::copy_n(all.begin(), own, what.fds.begin());
    const bool ready = std::any_of(what.fds.begin(), what.fds.end(), is_ready);
    if (ready || word_has_changed()) return 0;
    if (now >= what.deadline_ns) return ETIMEDOUT;
  }
  return 0;
}

// The thread stays in charge: what it calls does not wait, and is done in a moment.
void UdpNode::tell_in_charge(Lock& lock) {
  if (in_charge_->locks == Sleep::Locks::kSome) return kick();
  told_ = false;
  lock.unlock();
  if (!hand_out(HandOut::kTransfers)) wake_driver();
  lock.lock();
}

bool UdpNode::word_has_changed() const {
  const Sleep& what = *in_charge_;
  // PAIR event_count.news: sees what has changed it before `asleep_` was stored
  return what.word != nullptr && dekker::load(*what.word) != what.seen;
}

// Under the mutex: what this thread has fetched may be what another sleeps for.
void UdpNode::rouse_sleeper() {
  if (in_charge_ != nullptr && word_has_changed()) wake_sleepers();
}

void UdpNode::wake_sleepers() {
  // PAIR udp_node.asleep: loaded after the word has changed
  if (!abandoned() && dekker::load(asleep_)) signal_eventfd(wake_.get());
}

// --- asleep elsewhere ----------------------------------------------------------------------------

bool UdpNode::arm_descriptor() {
  if (abandoned()) return true;
  Lock lock(mutex_);
  if (shut_down_) return true;
  std::uint64_t now = monotonic_ns();
  const bool often = now - std::exchange(armed_at_, now) < kAway;
  ++armed_;
  cork_.look();
  if (!io_->arm(true)) hand_to_driver();
  if (often && in_charge_ == nullptr && others_asleep_ == 0 && !keep_watching_) {
    keep_out();
    (void)put_off_tick(now);
  }
  // Until nothing is left, as it may be slept on edge-triggered. What is owed leaves, too.
  io_->woken();
  bool more = true;
  for (int i = 0; i < kMostLooks && more; ++i, now = monotonic_ns()) more = pump(now);
  note_timer();
  rouse_sleeper();
  if (std::exchange(told_, false)) {
    lock.unlock();
    if (!hand_out(HandOut::kTransfers)) wake_driver();
  }
  return !more;
}

// Driver thread, under the mutex: whether a thread that has armed the descriptor serves the socket.
// One that does not come for what is there has gone, or is busy.
bool UdpNode::left_to_others(bool tick, std::uint64_t now) {
  const bool ticks = ticking_.load(std::memory_order_relaxed);  // relaxed: written under the mutex
  if (!ticks || others_asleep_ > 0 || keep_watching_) return false;
  const bool came = !tick || std::exchange(armed_, 0) > 0;
  if (now - armed_at_ >= kAway) return false;
  if (came || !pump(now)) return true;
  armed_at_ = 0;
  return false;
}

void UdpNode::keep_watching() {
  if (abandoned()) return;
  std::lock_guard lock(mutex_);
  if (std::exchange(keep_watching_, true)) return;
  if (in_charge_ != nullptr || shut_down_) return;
  flush(monotonic_ns());
  hand_to_driver();
}

}  // namespace clan::udp
