// Connection: its states, and what is called from outside. connection_send.cc and
// connection_receive.cc move the bytes.
#include "net/connection.h"

#include <clan/detail/clock.h>
#include <clan/detail/log.h>
#include <clan/detail/words.h>
#include <clan/face/connection_name.h>
#include <clan/face/socket_face.h>

#include <algorithm>
#include <utility>

namespace clan::preload {
namespace {

/// What was under way when TCP ended comes within this time of the last that came: as long as a
/// host is given to answer. A frame is seen when all of it has come, which may take seconds.
constexpr std::uint64_t kAfterTcpNs = 15'000'000'000;
/// An orderly end usually arrives within this time: else it is asked whether it is there.
constexpr std::uint64_t kAskNs = 20'000'000;
/// A program that writes to an end that is gone, and does not read, gets an error.
constexpr std::uint64_t kDeafNs = 500'000'000;
/// What a program that has closed has left to be sent is given up, when the other end takes none.
constexpr std::uint64_t kAfterCloseNs = 30'000'000'000;
/// until a call that was in the way is over
constexpr std::uint64_t kSwitchAgainNs = 2'000'000;
/// a lock that was in the way
constexpr std::uint64_t kAgainNs = 1'000'000;

}  // namespace

RemoteConnection::RemoteConnection(const CarrierCalls& calls, EventQueue& queue, std::uint64_t tag,
                                   const Route& names, bool client, void* socket)
    : calls_(calls), queue_(queue), tag_(tag), names_(names), client_(client), socket_(socket) {}

RemoteConnection::~RemoteConnection() {
  if (has_event_) queue_.remove_user(event_);
}

Status RemoteConnection::open() {
  auto event = queue_.add_user(tag_);
  if (!event) return event.error();
  event_ = *event;
  has_event_ = true;
  return {};
}

void RemoteConnection::post() { queue_.post_user(event_); }

std::string RemoteConnection::service() const {
  const auto& client = client_ ? names_.local : names_.remote;
  const auto& server = client_ ? names_.remote : names_.local;
  const ConnectionName name{client.address, server.address, client.port, server.port};
  return name.service();
}

Status RemoteConnection::listen(Context& context) {
  auto listener = Listener::create(context, service());
  if (!listener) return listener.error();
  const std::lock_guard lock(mutex_);
  listener_.emplace(std::move(*listener));
  return listener_->register_with(queue_, tag_);
}

void RemoteConnection::meet(Stream&& stream) {
  const std::lock_guard lock(mutex_);
  if (stream_ || stage() != CarrierStage::kMeeting) return;
  stream_.emplace(std::move(stream));
  if (auto s = stream_->register_with(queue_, tag_); !s) lose("no room for its events");
  post();
}

void RemoteConnection::fail() {
  CarrierStage expected = CarrierStage::kMeeting;
  // PAIR carrier.stage: publishes why, in the words of its pipe
  words::cas(stage_, expected, CarrierStage::kFailed);
}

bool RemoteConnection::attach(Pipe&& end) {
  const std::lock_guard lock(mutex_);
  if (stage() != CarrierStage::kMet || lost_) return false;
  pipe_ = std::move(end);
  set_stage(CarrierStage::kCarried);
  if (heard_attached_) (void)heard_attached_here();
  return true;
}

void RemoteConnection::release() {
  const std::lock_guard<std::recursive_mutex> lock(callbacks_);
  socket_ = nullptr;
  // PAIR carrier.released: what the program did to its pipe is done
  words::store_release(released_, true);
}

void RemoteConnection::tcp_ended() {
  std::uint64_t none = 0;
  // relaxed: a time by itself
  if (tcp_ended_ns_.compare_exchange_strong(none, monotonic_ns(), std::memory_order_relaxed))
    post();
}

void RemoteConnection::call(void (*callback)(void* socket)) {
  const std::lock_guard<std::recursive_mutex> lock(callbacks_);
  if (socket_ != nullptr) callback(socket_);
}

void RemoteConnection::lose(const char* why) {
  if (lost_) return;
  lost_ = tell_lost_ = for_carrier_ = true;
  CLAN_INFO("a connection between hosts: %s", why);
}

// No other thread is at it: one that is looks again, as its event is posted.
void RemoteConnection::pump() {
  if (!mutex_.try_lock()) return post();
  move(false);
  // PAIR carrier.released
  const bool released = words::load_acquire(released_);
  const bool rings = must_ring_ && callbacks_.try_lock();
  if (rings) must_ring_ = false;
  const bool comes = listener_ && !stream_;
  const bool more = std::exchange(for_carrier_, false) || must_ring_ || again_ || released || comes;
  mutex_.unlock();
  if (rings) {
    if (socket_ != nullptr) calls_.ring(socket_);
    callbacks_.unlock();
  }
  if (more) post();
}

void RemoteConnection::move(bool of_carrier) {
  if (!stream_) return;
  for (bool moved = true; moved;) {
    moved = !lost_ && send_out();
    moved = (!lost_ && take_in(of_carrier)) || moved;
    if (!moved && !lost_) moved = !arm();
  }
}

std::uint64_t RemoteConnection::serve() {
  std::unique_lock lock(mutex_);
  if (listener_ && !stream_) {
    if (auto accepted = listener_->try_accept(); accepted) {
      stream_.emplace(std::move(*accepted));
      listener_.reset();
      if (auto s = stream_->register_with(queue_, tag_); !s) lose("no room for its events");
    }
  }
  move(true);
  for_carrier_ = false;
  const bool ring = std::exchange(must_ring_, false);
  const bool answer = std::exchange(must_answer_, false);
  const bool lost = std::exchange(tell_lost_, false);
  const bool may_switch = must_switch_;
  const bool known = std::exchange(must_tell_switched_, false);
  if (lost || has_switched_too_late()) other_end_is_lost();
  const std::uint64_t at = look_at_time();
  lock.unlock();
  bool switched = true;
  if (may_switch) {
    const std::lock_guard<std::recursive_mutex> callback(callbacks_);
    switched = socket_ == nullptr || calls_.may_switch(socket_);
  }
  if (known) call(calls_.switch_is_known);
  if (ring) call(calls_.ring);
  if (answer) call(calls_.answer);
  lock.lock();
  if (may_switch && switched) {
    must_switch_ = false;
    move(true);          // what has been said by that
    if (again_) post();  // after the time is read
  }
  if (must_ring_ || must_tell_switched_ || must_answer_ || tell_lost_) post();
  if (must_switch_) {
    const std::uint64_t again = monotonic_ns() + kSwitchAgainNs;
    return at == 0 || again < at ? again : at;
  }
  return at;
}

// Under the lock. Where nothing has moved yet TCP still has all; else bytes are missing.
void RemoteConnection::other_end_is_lost() {
  if (stage() != CarrierStage::kCarried && !went_back_) {
    set_stage(stage() == CarrierStage::kOver ? CarrierStage::kOver : CarrierStage::kFailed);
    return;
  }
  const auto& mine = pipe_.peer_face();
  const auto state = [&] {
    return mine.words[socket_face::kState].load(std::memory_order_seq_cst);  // PAIR face.state
  };
  const bool closed = (state() & socket_face::kClosed) != 0;
  // An other end that has heard that this one is in its pipe may have switched.
  went_back_ =
      !said_attached_ && !heard_switch_ && !heard_leave_ && (state() & socket_face::kSending) == 0;
  if (went_back_) other_end_leaves();
  const bool may_miss_bytes =
      heard_switch_ || (said_attached_ && !heard_leave_) || (state() & socket_face::kSending) != 0;
  if (may_miss_bytes && !closed) {
    went_back_ = false;
    // PAIR face.state
    pipe_.my_face().words[socket_face::kState].fetch_or(socket_face::kReset,
                                                        std::memory_order_acq_rel);
    call(calls_.lost);
  }
  set_stage(CarrierStage::kOver);
  call(calls_.ring);
}

// Nothing had moved when the way was lost, and the program switched just then.
bool RemoteConnection::has_switched_too_late() const {
  return went_back_ && (pipe_.peer_face().words[socket_face::kState].load(
                            std::memory_order_seq_cst) &  // PAIR face.state
                        socket_face::kSending) != 0;
}

std::uint64_t RemoteConnection::look_at_time() {
  const std::uint64_t now = monotonic_ns();
  std::uint64_t at = again_ && !lost_ ? now + kAgainNs : 0;
  const auto by = [&](std::uint64_t due) { at = at == 0 || due < at ? due : at; };
  const std::uint64_t ended = tcp_ended_ns_.load(std::memory_order_relaxed);
  if (ended != 0 && stage() == CarrierStage::kCarried && !lost_) {
    if (!asked_ && now >= ended + kAskNs) {
      asked_ = true;
      stream_->ask();
    }
    if (!asked_) by(ended + kAskNs);
    // What the pipe has no room for has come: how long the program takes to read is its own matter.
    const std::uint64_t due = (full_ ? now : std::max(ended, heard_ns_)) + kAfterTcpNs;
    if (now >= due) {
      lose("its other end is gone, and has not said that this was all");
      post();
    } else {
      by(due);
    }
  }
  if (dropped_ns_ != 0 && !lost_) {
    const std::uint64_t patience = closed_there_ ? kAfterTcpNs : kDeafNs;
    const std::uint64_t due = std::max(dropped_ns_, heard_ns_) + patience;
    if (now >= due) {
      lose("its other end is gone, and its program writes and does not read");
      post();
    } else {
      by(due);
    }
  }
  // PAIR carrier.released
  if (words::load_acquire(released_) && !is_quiet_now()) {
    if (released_ns_ == 0) released_ns_ = now;
    const std::uint64_t due = released_ns_ + kAfterCloseNs;
    if (now >= due) {
      lose("the other host does not take what was left when this end closed");
    } else {
      by(due);
    }
  }
  return at;
}

// Under the lock.
bool RemoteConnection::is_quiet_now() const {
  if (lost_ || !stream_ || said_closed_ || deaf_) return true;
  if (never_comes()) return said_leave_;
  if (!pipe_) return true;
  return said_leave_ && heard_leave_;
}

bool RemoteConnection::is_quiet() {
  const std::lock_guard lock(mutex_);
  return is_quiet_now();
}

bool RemoteConnection::is_done() {
  const std::lock_guard lock(mutex_);
  // PAIR carrier.released
  return words::load_acquire(released_) && is_quiet_now();
}

}  // namespace clan::preload
