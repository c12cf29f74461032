#include "link/udp/node/udp_node.h"

#include <poll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>

#include "base/futex.h"
#include "base/random.h"
#include "clan/detail/clock.h"
#include "clan/detail/dekker.h"
#include "clan/detail/log.h"
#include "clan/detail/words.h"
#include "link/udp/node/path_stats_page.h"
#include "link/udp/node/udp_link.h"

namespace clan::udp {
namespace {

// A thread polls if it has looked kPolls times since the driver thread did, last just now; or, at a
// tick, as often since the last tick.
constexpr std::uint64_t kJustNow = 30'000;
constexpr std::uint64_t kLately = 100'000;  ///< a thread has looked: it is back in a moment
constexpr int kMostRuns = 64;  ///< of the pump, before other descriptors get their turn

}  // namespace

/// One of the node's descriptors under the reactor.
class UdpNode::Event final : public Pollable {
 public:
  enum class Kind { kSocket, kTimer, kKick };
  Event(std::weak_ptr<UdpNode> node, Kind kind, int fd)
      : node_(std::move(node)), kind_(kind), fd_(fd) {}
  void on_ready(std::uint32_t) override {
    auto node = node_.lock();
    if (!node) return;
    std::uint64_t count;
    if (kind_ != Kind::kSocket && ::read(fd_, &count, sizeof count) < 0) return;
    node->drive(kind_ == Kind::kTimer);
  }

 private:
  std::weak_ptr<UdpNode> node_;
  Kind kind_;
  int fd_;
};

UdpNode::UdpNode(NodeOwner owner, std::unique_ptr<PacketIo> io, std::unique_ptr<Security> security,
                 const Options& options)
    : owner_(std::move(owner)),
      mode_(security ? security->mode() : Mode::kOff),
      security_(std::move(security)),
      io_(std::move(io)),
      endpoint_(
          options, *this, [] { return random_u64(); }, security_.get()),
      pump_(endpoint_, *io_) {}

Result<std::shared_ptr<UdpNode>> UdpNode::create(NodeOwner owner, std::unique_ptr<PacketIo> io,
                                                 std::unique_ptr<Security> security,
                                                 const Options& options) {
  std::shared_ptr<UdpNode> node(
      new UdpNode(std::move(owner), std::move(io), std::move(security), options));
  if (auto s = node->start(); !s) return s.error();
  return node;
}

Status UdpNode::start() {
  timer_ = Fd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer_) return errno_error("timerfd_create");
  for (Fd* fd : {&kick_, &wake_}) {
    auto made = create_eventfd();
    if (!made) return made.error();
    *fd = std::move(*made);
  }
  Reactor& reactor = *owner_.reactor;
  auto event = [&](Event::Kind kind, int fd) {
    return reactor.add(fd, std::make_shared<Event>(weak_from_this(), kind, fd));
  };
  if (auto s = event(Event::Kind::kTimer, timer_.get()); !s) return s;
  if (auto s = event(Event::Kind::kKick, kick_.get()); !s) return s;
  std::lock_guard lock(mutex_);
  io_->on_change([this] { wake_sleepers(); });  // it sleeps on what there was
  watch_socket(true);
  return watching_ ? Status() : Error{EIO, "the UDP socket cannot be watched"};
}

// --- progress ------------------------------------------------------------------------------------

bool UdpNode::pump(std::uint64_t now) {
  cork_.leave(now);
  send_revocations();
  if (owner_.path_stats != nullptr) owner_.path_stats->show_now_and_then(now);
  return pump_.run(now);
}

// Before the thread that sees to the socket sleeps.
void UdpNode::show_paths() {
  if (owner_.path_stats != nullptr) owner_.path_stats->show();
}

void UdpNode::flush(std::uint64_t now) {
  cork_.leave(now);
  (void)pump_.send(now);
}

// After a call that may have something to send.
void UdpNode::after_call() {
  if (batch_ > 0 || shut_down_) return;
  const std::uint64_t now = monotonic_ns();
  const bool back_soon = may_hold() && now - polled_at_ < kLately && !on_driver_thread();
  if (!back_soon || !cork_.holds(now)) {
    flush(now);
    note_timer();
  }
  if (told_) kick();
}

void UdpNode::tell(std::function<void(nic::LinkSink&)> call) {
  queue_up_call({std::move(call), false});
}

void UdpNode::tell_transfer(std::uint64_t token, int err, std::uint64_t bytes) {
  queue_up_call({[=](nic::LinkSink& sink) { sink.on_transfer_done(token, err, bytes); }, true});
}

void UdpNode::queue_up_call(UpCall call) {
  std::lock_guard lock(told_mutex_);
  up_calls_.push_back(std::move(call));
  told_ = true;
}

std::size_t UdpNode::waiting_up_calls() {
  std::lock_guard lock(told_mutex_);
  return up_calls_.size();
}

void UdpNode::kick() {
  told_ = false;
  wake_driver();
}

void UdpNode::wake_driver() {
  // PAIR udp_node.kicked: the check that follows sees up-calls queued before
  if (!words::swap(kicked_, true)) signal_eventfd(kick_.get());
}

// Left to the driver thread. Where it cannot watch the socket it checks at each tick.
void UdpNode::hand_to_driver() {
  watch_socket(true);
  if (watching_) {
    set_timer();
  } else {
    keep_out();
  }
}

void UdpNode::watch_socket(bool on) {
  if (on) show_paths();
  if (on == watching_) return;
  if (on && !io_->arm(true)) return;
  const int fd = io_->descriptor();
  if (!on) {
    owner_.reactor->remove(fd);
  } else if (!owner_.reactor->add(
                 fd, std::make_shared<Event>(weak_from_this(), Event::Kind::kSocket, fd))) {
    return;
  }
  watching_ = on;
}

// The driver thread has to know of a time-out if it waits, or a thread in charge looks later.
void UdpNode::note_timer() {
  const bool has_to_know = in_charge_ == nullptr
                               ? watching_
                               : pump_.next_timeout() < charge_until_ || pump_.waits_for_room();
  if (has_to_know) set_timer();
}

// Arms the timer for the endpoint's next time-out, and for ticks no more; later ones find it armed.
void UdpNode::set_timer() {
  io_->want_room(pump_.waits_for_room());
  const std::uint64_t at = std::max<std::uint64_t>(pump_.next_timeout(), 1);
  const bool ticks = ticking_.load(std::memory_order_relaxed);  // relaxed: written under the mutex
  if (at >= timer_at_ && !ticks) return;
  if (ticks) {
    // PAIR udp_node.ticking: before the check of what has counted on a tick
    dekker::announce(ticking_, false);
    // PAIR udp_node.revoked: sees the flag
    if (dekker::load(any_revoked_)) wake_driver();
  }
  timer_at_ = at;
  itimerspec when{};
  if (at != kNever) {
    when.it_value.tv_sec = static_cast<time_t>(at / kSecond);
    when.it_value.tv_nsec = static_cast<long>(at % kSecond);
  }
  (void)::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

// A polling thread holds the mutex most of the time, and a driver thread that waits for it makes
// each unlock a system call and a switch. So at a tick, and for up-calls while it ticks, the driver
// does not wait: the owner fetches packets, the next tick looks again. Only revocations wait.
void UdpNode::drive(bool timer) {
  // PAIR udp_node.kicked: what is announced from now on kicks again
  if (!timer) words::swap(kicked_, false);
  std::unique_lock lock(mutex_, std::defer_lock);
  // relaxed: a thread that ends the ticks arms the timer anew
  const bool may_wait =
      !ticking_.load(std::memory_order_relaxed) ||
      (!timer && any_revoked_.load(std::memory_order_relaxed));  // relaxed: its kick brings us here
  if (may_wait) lock.lock();
  if (may_wait || lock.try_lock()) {
    if (shut_down_) return;
    const bool ticks = ticking_.load(std::memory_order_relaxed);  // relaxed: under the mutex
    if (timer && !ticks) timer_at_ = kNever;
    io_->woken();
    std::uint64_t now = monotonic_ns();
    if (cork_.any()) flush(now);  // the thread has not come back
    const bool just_now = now - polled_at_ < kJustNow;
    const bool polled = std::exchange(polls_, 0) >= kPolls && (just_now || (timer && ticks));
    const bool slept = timer ? std::exchange(sleeps_, 0) > 0 && others_asleep_ == 0 : ticks;
    if (in_charge_ != nullptr) {
      (void)pump(now);
      note_timer();
      // it has slept for a tick: the next thread makes it tick again
      if (ticks && !slept) set_timer();
      rouse_sleeper();
    } else if (polled || (slept && !keep_watching_) || left_to_others(timer, now)) {
      // A thread fetches what comes. Check later whether it still does: it may be busy, sending.
      if (pump_.has_more() || (polled && !just_now)) (void)pump(now);
      if (!polled) (void)io_->arm(true);  // one may sleep on it elsewhere
      keep_out();
    } else {
      for (int i = 0; i < kMostRuns && pump(now); ++i) now = monotonic_ns();
      hand_to_driver();
    }
    told_ = false;
    lock.unlock();
  }
  (void)hand_out(HandOut::kAll);
}

// The engine may call us in these. False: what is left is the driver thread's.
bool UdpNode::hand_out(HandOut which) {
  for (;;) {
    UpCall next;
    {
      std::lock_guard lock(told_mutex_);
      if (up_calls_.empty()) return true;
      if (which == HandOut::kTransfers && !up_calls_.front().is_of_transfer) return false;
      next = std::move(up_calls_.front());
      up_calls_.pop_front();
    }
    next.call(*owner_.sink);
  }
}

// Answers have come, or links have gone.
void UdpNode::announce() {
  answers_.notify([this](auto& word) {
    // The one in charge sleeps elsewhere, and one that is about to sleep compares the word.
    if (others_asleep_ > 0) futex_wake(word);
  });
  changed_.notify_all();
  rouse_sleeper();
}

// --- revocations ---------------------------------------------------------------------------------

void UdpNode::announce_revoked(std::shared_ptr<UdpLink> link, std::uint32_t aperture,
                               std::uint32_t generation) {
  if (abandoned()) return;
  std::lock_guard lock(revoked_mutex_);
  revoked_.push_back({link, aperture, generation});
  // PAIR udp_node.revoked: what is in the list is sent by the next look
  if (dekker::swap(any_revoked_, true)) return;
  // PAIR udp_node.ticking: the next tick looks, or set_timer() has seen the list
  if (!dekker::load(ticking_)) signal_eventfd(kick_.get());
}

void UdpNode::send_revocations() {
  // PAIR udp_node.revoked: sees the list
  if (!words::load_acquire(any_revoked_)) return;
  std::vector<Revoked> revoked;
  {
    std::lock_guard lock(revoked_mutex_);
    revoked.swap(revoked_);
    any_revoked_.store(false, std::memory_order_relaxed);  // relaxed: under the mutex
  }
  for (const Revoked& r : revoked) {
    if (auto link = r.link.lock()) link->send_revoked(r.aperture, r.generation);
  }
}

// --- up-calls of the transport -------------------------------------------------------------------

void UdpNode::on_down(Connection& c, int err) {
  end_dialling(c, err == 0 ? ECONNRESET : err, {});
  auto it = links_.find(&c);
  if (it == links_.end()) return;
  auto link = std::move(it->second);
  links_.erase(it);
  if (owner_.path_stats != nullptr) owner_.path_stats->remove(link.get());
  c.user = nullptr;
  link->on_down();
}

// --- the end -------------------------------------------------------------------------------------

void UdpNode::shut_down(std::uint64_t patience_ns) {
  if (abandoned()) return;
  std::unique_lock lock(mutex_);
  if (std::exchange(shut_down_, true)) return;
  send_revocations();
  (void)io_->arm(true);
  const std::uint64_t begin = monotonic_ns();
  std::vector<Connection*> open;  // of those: a host that has not answered is not waited for
  for (auto& [connection, link] : links_) open.push_back(connection);
  std::vector<std::function<void(Result<Dialled>)>> unsaid;
  for (auto& [connection, dialling] : dialling_) {
    open.push_back(connection);
    dialling->connection = nullptr;
    unsaid.push_back(std::exchange(dialling->ended, nullptr));
  }
  dialling_.clear();
  for (Connection* c : open) endpoint_.close(*c, 0, begin);
  for (std::uint64_t now = begin, left = kNever, last = begin;
       endpoint_.connections() > 0 && now - last < patience_ns && now - begin < kMostGoodBye;
       now = monotonic_ns()) {
    if (const auto n = endpoint_.bytes_left(); n < left) left = n, last = now;
    if (pump_.run(now)) continue;
    pollfd fd{io_->descriptor(), POLLIN, 0};
    (void)::poll(&fd, 1, 1);
    io_->woken();
  }
  for (auto& [connection, link] : links_) {
    if (owner_.path_stats != nullptr) owner_.path_stats->remove(link.get());
    link->forget_connection();
  }
  links_.clear();
  // Nobody will read the calls queued until now; they hold links, which hold this node.
  std::deque<UpCall> unheard;
  {
    std::lock_guard told(told_mutex_);
    unheard.swap(up_calls_);
  }
  announce();
  lock.unlock();
  wake_sleepers();
}

void UdpNode::break_links(int err) {
  std::lock_guard lock(mutex_);
  std::vector<Connection*> open;
  for (auto& [connection, link] : links_) open.push_back(connection);
  for (Connection* c : open) endpoint_.close(*c, err, monotonic_ns());
  for (Connection* c : open) on_down(*c, err);
  kick();
}

void UdpNode::abandon_after_fork() {
  abandoned_.store(true, std::memory_order_relaxed);  // relaxed: the child has one thread
  io_.reset();
  timer_.reset();
  kick_.reset();
  wake_.reset();
}

}  // namespace clan::udp
