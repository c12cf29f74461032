#include "channel.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "omni.h"
#include "watcher.h"

namespace clan::orb {
namespace {

constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  ///< what an int holds, and a bit less
constexpr int kPeekMs = 50;  ///< as long as the ORB's own transports watch one
/// threads of the pool that may sleep for one connection each
constexpr int kMostSleepingPeeks = 8;

std::atomic<int> sleeping_peeks{0};

/// Milliseconds until `deadline`, a time of the wall clock: -1 if there is none, 0 if it is over.
std::int64_t milliseconds_left(const omni_time_t& deadline) {
  if (!deadline) return -1;
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  const std::int64_t ns = (static_cast<std::int64_t>(deadline.s) - now.tv_sec) * 1'000'000'000 +
                          (static_cast<std::int64_t>(deadline.ns) - now.tv_nsec);
  return ns <= 0 ? 0 : (ns + 999'999) / 1'000'000;
}

}  // namespace

Channel::Channel(std::shared_ptr<Node> node, Stream stream, bool client)
    : node_(std::move(node)),
      stream_(std::move(stream)),
      peer_(stream_.peer()),
      traffic_(node_->traffic(), peer_, client),
      peek_waiter_(node_->context().options().wait) {}

Channel::~Channel() {
  if (!inherited()) return;
  traffic_.forget();
  new std::shared_ptr<Node>(std::move(node_));  // the parent's: not to be ended here
}

// --- bytes ---------------------------------------------------------------------------------------

int Channel::send(const void* bytes, std::size_t size, const omni_time_t& deadline) {
  const std::span<const std::byte> data(static_cast<const std::byte*>(bytes),
                                        std::min(size, kMostAtOnce));
  for (;;) {
    if (shut_) return -1;
    const std::int64_t left = milliseconds_left(deadline);
    if (left == 0) return 0;
    const auto sent = stream_.send(data, left);
    if (sent.ok()) {
      traffic_.sent(*sent);
      return static_cast<int>(*sent);
    }
    if (sent.error().err != EINTR && sent.error().err != ETIMEDOUT) return -1;
  }
}

// A thread in peek() gives way: it holds the receiver while it spins or sleeps.
void Channel::take_receiver() {
  if (!receiving_.exchange(true)) [[likely]]
    return;
  wants_receiver_ = true;
  while (receiving_.exchange(true)) ::sched_yield();
  wants_receiver_ = false;
}

int Channel::receive(void* buffer, std::size_t size, const omni_time_t& deadline) {
  const std::span<std::byte> room(static_cast<std::byte*>(buffer), std::min(size, kMostAtOnce));
  take_receiver();
  int result = -1;
  while (!shut_) {
    const std::int64_t left = milliseconds_left(deadline);
    if (left == 0) {
      result = 0;
      break;
    }
    const auto got = stream_.recv(room, left);
    if (got.ok()) {
      traffic_.received(*got);
      result = *got > 0 ? static_cast<int>(*got) : -1;
      break;
    }
    if (got.error().err != EINTR && got.error().err != ETIMEDOUT) break;
  }
  leave_receiver();
  return result;
}

void Channel::shut_down() {
  shut_ = true;
  if (!inherited()) stream_.abort();
}

// --- the watch -----------------------------------------------------------------------------------

bool Channel::watch_by(std::shared_ptr<Watcher> watcher, omni::giopConnection* connection) {
  if (watcher_) return true;
  connection_ = connection;
  watcher_ = std::move(watcher);
  id_ = watcher_->add(shared_from_this());
  if (id_ == 0) watcher_.reset();
  return watcher_ != nullptr;
}

void Channel::unwatch() {
  if (inherited()) return;
  if (watcher_) {
    clear();
    watcher_->remove(id_);
  }
  stream_.close();
}

void Channel::set_selectable(int now, bool data_in_buffer) {
  if (inherited() || !watcher_) return;
  if (data_in_buffer) in_buffer_ = true;
  if (now == 2) {
    arm(kWanted);
  } else {
    std::uint32_t idle = kIdle;
    if (state_.compare_exchange_strong(idle, kWanted) && now == 0) {
      // relaxed: a hint
      turn_.store(turn_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      if (!listed_) watcher_->list(shared_from_this());
    }
    if (now == 1 && !data_in_buffer) arm(kWanted);
  }
  if (in_buffer_) watcher_->tell_soon(id_);
}

// One thread learns what the ORB holds in a buffer: one in peek(), or a new one by the watcher.
bool Channel::take_buffered() {
  if (!in_buffer_) return false;
  std::lock_guard lock(arming_);
  return in_buffer_.exchange(false);
}

// The same for the watcher. If no thread waits for it, the next that does gets it.
bool Channel::take_buffered_event() {
  std::lock_guard lock(arming_);
  if (!in_buffer_ || state_.exchange(kIdle) == kIdle) return false;
  in_buffer_ = false;
  return true;
}

// Watches from now on, if the state still is `from`. Reports what has arrived already.
void Channel::arm(std::uint32_t from) {
  std::lock_guard lock(arming_);
  if (!state_.compare_exchange_strong(from, kArming)) return;
  bool there = false;
  if (events_on_ && !receiving_.exchange(true)) {
    there = readable();  // an event for it may have come while nobody watched
    leave_receiver();
  } else {
    (void)stream_.resume_events();  // posts one for it
    events_on_ = true;
  }
  std::uint32_t arming = kArming;
  if (state_.compare_exchange_strong(arming, kArmed) && there) watcher_->look_again(id_);
}

void Channel::clear() {
  if (inherited() || !watcher_) return;
  const std::uint32_t before = state_.exchange(kIdle);
  if (before == kArming) {
    std::lock_guard lock(arming_);  // a thread that is arming checks the stream
  }
  while (telling_) ::sched_yield();  // after this the ORB may delete the connection
}

// An event has come. True: the caller notifies the ORB, and the watch has ended. An event may also
// mean that the peer has read what we sent. Events that tell nothing new, as when a thread reads by
// itself, are switched off: each costs the peer some of its time.
bool Channel::take_event() {
  std::lock_guard lock(arming_);
  const std::uint32_t before = state_;
  bool there = before == kArmed;  // a call under way is given its tick: oneways stay in order
  if (there && !receiving_.exchange(true)) {
    there = readable();
    leave_receiver();
  }
  std::uint32_t same = before;
  if (there && state_.compare_exchange_strong(same, kIdle)) {
    in_buffer_ = false;  // the thread that is notified reads that first
    return true;
  }
  if (before != kArmed && events_on_) {
    stream_.pause_events();
    events_on_ = false;
  }
  return false;
}

// --- peek ----------------------------------------------------------------------------------------

// Precondition: the caller has the receiver. True for an end as well: receive() says which.
bool Channel::readable() { return stream_.readable(); }

bool Channel::peek() {
  if (inherited() || !watcher_ || shut_) return false;
  const std::uint32_t before = state_.load();
  if (before == kIdle) return false;
  clear();
  if (take_buffered()) return true;
  bool there = false;
  if (!receiving_.exchange(true)) {
    const auto stop = [this] { return readable() || wants_receiver_ || shut_; };
    there = peek_waiter_.spin(stop, PeerHint{}) && readable();
    // Asleep it cannot give way to a thread that reads the answer to a call in the other direction.
    const bool alone = !omni::orbParameters::acceptBiDirectionalGIOP &&
                       !omni::orbParameters::offerBiDirectionalGIOP;
    if (!there && alone && !wants_receiver_ && !shut_) {
      if (sleeping_peeks.fetch_add(1) < kMostSleepingPeeks) {
        there = stream_.wait_readable(kPeekMs).ok() && readable();
      }
      sleeping_peeks.fetch_sub(1);
    }
    leave_receiver();
  }
  if (!there) {
    std::uint32_t idle = kIdle;
    state_.compare_exchange_strong(idle, kWanted);  // setSelectable(2) follows
  }
  return there;
}

}  // namespace clan::orb
