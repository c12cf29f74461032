// Connection: tear-down, by either side, by the death of the peer or by its misbehaviour.
#include <cerrno>

#include "base/futex.h"
#include "clan/detail/dekker.h"
#include "clan/detail/log.h"
#include "clan/detail/words.h"
#include "engine/connection/connection.h"

namespace clan::engine {

void Connection::peer_left(int reason, bool done) {
  bool news = false;
  std::shared_ptr<ClosedConnection> remains;
  {
    std::lock_guard lock(mutex_);
    news = !peer_gone_.load(std::memory_order_relaxed);
    if (news) {
      reset_reason_.store(reason, std::memory_order_relaxed);
      // PAIR connection.peer_gone: what the peer wrote before is visible to peer_gone() and peek()
      words::store_release(peer_gone_, true);
      // Once we have closed, nobody is left to be surprised by its end.
      if (reason != 0 && !closed_.load(std::memory_order_relaxed)) {
        count(context_->counters().connections_reset);
      }
    }
    if (done) {
      peer_done_ = true;
      remains = remains_;
      if (!answer_known_) {
        answer_known_ = true;
        answer_err_ = ECONNRESET;
        answered_.notify_all();
      }
    }
  }
  if (news && !closed_.load(std::memory_order_relaxed)) {
    if (reason == ECONNRESET) {
      CLAN_INFO("process %d died or gave up a connection with us",
                static_cast<int>(link_->remote_pid()));
    } else if (reason == 0) {
      CLAN_DEBUG("process %d closed a connection with us", static_cast<int>(link_->remote_pid()));
    }
  }
  if (news) wake_local();
  if (remains) remains->release();
}

// Fires our own tripwires as if the peer had written: sleepers check again, event queues get their
// events.
void Connection::wake_local() {
  for (std::uint32_t t : {ring_tripwire_, credit_tripwire_}) {
    if (t == shm::kNoTripwire) continue;
    auto& signal = nic_.image().signals->tripwires[t];
    // PAIR tripwire.fired: as a peer that has written
    dekker::add(signal.fired, 1);
    futex_wake(signal.fired);
    link_->wake_sleepers();
  }
  EventBinding events, also;
  {
    std::lock_guard lock(mutex_);
    events = events_;
    also = also_;
  }
  events.post();
  also.post();
}

void Connection::close() {
  if (!context_->usable()) return;  // the parent's, or ended with its context
  {
    std::lock_guard lock(mutex_);
    if (closed_.exchange(true, std::memory_order_relaxed)) return;
  }
  unbind();
  if (region_.bytes == 0) return;
  // From here on the driver thread may find `remains` under our endpoint.
  auto remains = std::make_shared<ClosedConnection>(
      *context_, link_, nic_, arena_, region_,
      region_cookie_.length != 0 ? region_cookie_.aperture : shm::kMaxApertures, endpoint_);
  if (endpoint_ != 0) context_->endpoints().keep(endpoint_, remains);
  bool done, answered;
  {
    std::lock_guard lock(mutex_);
    remains_ = remains;
    done = peer_done_ || !exposed_;
    answered = answer_known_ && exposed_;
  }
  if (answered) {
    const int reason = reset_reason();
    tell_end(*link_, kOobClose, remote_endpoint_, endpoint_,
             reason == EPROTO || reason == ECONNABORTED ? ECONNRESET : 0);
  }
  if (remote_imported_) link_->release(remote_);
  if (done || !link_->alive()) remains->release();
}

Connection::~Connection() { close(); }

void Connection::reset_hostile(const char* what) {
  if (peer_gone()) return;
  count(context_->counters().hostile_peers);
  CLAN_WARN("connection with process %d reset: %s", static_cast<int>(link_->remote_pid()), what);
  peer_left(EPROTO, false);
}

void Connection::abort() {
  if (!context_->usable()) return;
  peer_left(ECONNABORTED, false);
  // Not kClose: another thread may be in the middle of a record, so the peer must keep its region.
  tell_end(*link_, kOobReset, remote_endpoint_, endpoint_, 0);
}

void Connection::ask() const {
  if (context_->usable() && !peer_gone()) tell_end(*link_, kOobAsk, remote_endpoint_, endpoint_, 0);
}

int Connection::broken() {
  reset_hostile("impossible record in its ring");
  return -1;
}

void tell_end(nic::Link& link, std::uint32_t type, std::uint32_t to, std::uint32_t from,
              int reason) {
  OobMessage message{.to = to, .from = from, .type = type};
  if (reason != 0) put_payload(message, reason);
  (void)link.send_oob(message);
}

void ClosedConnection::release() {
  // relaxed: only which caller is first
  if (released_.exchange(true, std::memory_order_relaxed)) return;
  if (aperture_ != shm::kMaxApertures) nic_.retire(aperture_);
  arena_->free(region_);
  if (endpoint_ != 0) context_.endpoints().remove(endpoint_);
}

void ClosedConnection::on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) {
  if (link != link_) return;
  if (message.type == kOobAccept) {
    // too late: nobody waits for it any more
    tell_end(*link, kOobClose, message.from, endpoint_, 0);
  } else if (message.type == kOobClose || message.type == kOobRefuse) {
    release();
  }
}

void ClosedConnection::on_link_down(const std::shared_ptr<nic::Link>& link) {
  if (link == link_) release();
}

}  // namespace clan::engine
