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

}  // namespace

std::int64_t milliseconds_left(const omni_time_t& deadline) {
  if (!deadline) return -1;
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  const std::int64_t ns = (static_cast<std::int64_t>(deadline.s) - now.tv_sec) * 1'000'000'000 +
                          (static_cast<std::int64_t>(deadline.ns) - now.tv_nsec);
  return ns <= 0 ? 0 : (ns + 999'999) / 1'000'000;
}

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

// As giopConnection: what `some` moves, 0 when the time is over, -1.
template <typename Some>
int Channel::move(const omni_time_t& deadline, const Some& some) const {
  while (!shut_) {
    const std::int64_t left = milliseconds_left(deadline);
    if (left == 0) return 0;
    const Result<std::size_t> moved = some(left);
    if (moved.ok()) return *moved > 0 ? static_cast<int>(*moved) : -1;
    if (moved.error().err != EINTR && moved.error().err != ETIMEDOUT) break;
  }
  return -1;
}

int Channel::send(const void* bytes, std::size_t size, const omni_time_t& deadline) {
  const std::span data(static_cast<const std::byte*>(bytes), std::min(size, kMostAtOnce));
  const int sent = move(deadline, [&](std::int64_t ms) { return stream_.send(data, ms); });
  if (sent > 0) traffic_.sent(static_cast<std::size_t>(sent));
  return sent;
}

int Channel::receive(void* buffer, std::size_t size, const omni_time_t& deadline) {
  const std::span room(static_cast<std::byte*>(buffer), std::min(size, kMostAtOnce));
  while (!reader_.insist()) ::sched_yield();  // a thread in peek() gives way while it spins
  const int got = move(deadline, [&](std::int64_t ms) { return stream_.recv(room, ms); });
  if (got > 0) traffic_.received(static_cast<std::size_t>(got));
  reader_.end();
  return got;
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
    std::lock_guard lock(events_);
    events_on_ = false;  // an event that the watcher has found before leaves the stream alone
  }
  stream_.close();
}

void Channel::set_selectable(int now, bool data_in_buffer) {
  if (inherited() || !watcher_) return;
  if (data_in_buffer) watch_.set(kInBuffer);
  const WatchEvent event = now == 0         ? WatchEvent::kSoon
                           : now == 2       ? WatchEvent::kAgain
                           : data_in_buffer ? WatchEvent::kWant
                                            : WatchEvent::kNow;
  const WatchChange change = watch_.take(event);
  if (change.sets(kListed)) watcher_->list(shared_from_this());
  if (change.enters(kArmed)) arm();
  if (change.has(kInBuffer)) watcher_->look_at(id_);
}

void Channel::clear() {
  if (!inherited() && watcher_) end_watch(watch_.take(WatchEvent::kClear));
}

// After this no other thread uses the stream for the watch, and the ORB may delete the connection.
void Channel::end_watch(const WatchChange& change) {
  if (change.leaves(kArmed)) {
    std::lock_guard lock(events_);  // a thread that has seen it armed is done
  }
  while (watch_.now().has(kTelling)) ::sched_yield();
}

// It has just been armed: what comes posts an event, and what has arrived already is looked for.
void Channel::arm() {
  std::lock_guard lock(events_);
  if (!watch_.now().is(kArmed)) return;  // not any more
  if (events_on_ && reader_.begin()) {
    // an event for it may have come while nobody watched
    if (stream_.readable()) watcher_->look_at(id_);
    reader_.end();
  } else {
    (void)stream_.resume_events();  // posts one for it
    events_on_ = true;
  }
}

// Tells the ORB if it wants to know of bytes that have arrived, or that it holds itself.
bool Channel::look(Tell tell, void* cookie) {
  {
    std::lock_guard lock(events_);
    bool arrived = watch_.now().is(kArmed);  // a call under way has its tick: oneways stay in order
    if (arrived && reader_.begin()) {
      arrived = stream_.readable();
      reader_.end();
    }
    // The thread that is notified reads what the ORB holds first.
    const WatchEvent event = arrived ? WatchEvent::kArrived : WatchEvent::kHeld;
    if (!watch_.take(event).sets(kTelling)) return false;
  }
  tell(cookie, connection_);
  watch_.clear(kTelling);
  return true;
}

// An event may also mean that the peer has read what we sent. Events that tell nothing new, as when
// a thread reads by itself, are switched off: each costs the peer some of its time.
void Channel::on_event(Tell tell, void* cookie) {
  if (look(tell, cookie)) return;
  std::lock_guard lock(events_);
  if (watch_.now().is(kArmed) || !events_on_) return;
  stream_.pause_events();
  events_on_ = false;
}

// --- peek ----------------------------------------------------------------------------------------

bool Channel::peek() {
  if (inherited() || !watcher_ || shut_) return false;
  const WatchChange change = watch_.take(WatchEvent::kPeek);
  if (change.was(kIdle)) return false;
  end_watch(change);
  if (change.clears(kInBuffer)) return true;
  bool there = false;
  if (reader_.begin()) {
    const auto give_way = [this] { return shut_ || reader_.gives_way(); };
    const auto stop = [&] { return stream_.readable() || give_way(); };
    there = peek_waiter_.spin(stop, PeerHint{}) && stream_.readable();
    // Asleep it cannot give way to a thread that reads the answer to a call in the other direction.
    const bool alone = !omni::orbParameters::acceptBiDirectionalGIOP &&
                       !omni::orbParameters::offerBiDirectionalGIOP;
    if (!there && alone && !give_way()) {
      if (sleeping_peeks.fetch_add(1) < kMostSleepingPeeks) {
        there = stream_.wait_readable(kPeekMs).ok() && stream_.readable();
      }
      sleeping_peeks.fetch_sub(1);
    }
    reader_.end();
  }
  if (!there) watch_.take(WatchEvent::kWant);  // setSelectable(2) follows
  return there;
}

}  // namespace clan::orb
