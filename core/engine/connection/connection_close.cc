// Connection: tear-down, by either side, by the death of the peer or by its misbehaviour.
#include <cerrno>

#include "clan/detail/log.h"
#include "clan/detail/words.h"
#include "engine/connection/connection.h"

namespace clan::engine {

void Connection::peer_left(int reason, bool done) {
  bool news = false;
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
      take_answer(ECONNRESET);
    }
  }
  // Once we have closed, our tripwires may have gone as well.
  if (news && !closed_.load(std::memory_order_relaxed)) {
    if (reason == ECONNRESET) {
      CLAN_INFO("process %d died or gave up a connection with us",
                static_cast<int>(link_->remote_pid()));
    } else if (reason == 0) {
      CLAN_DEBUG("process %d closed a connection with us", static_cast<int>(link_->remote_pid()));
    }
    wake_local();
  }
  if (done) give_region_back();
}

// Fires our own tripwires as if the peer had written: sleepers check, event queues get events.
void Connection::wake_local() {
  for (std::uint32_t t : {ring_tripwire_, credit_tripwire_}) {
    if (t == shm::kNoTripwire) continue;
    nic_.image().signals->tripwires[t].fired.notify_all_the_same();
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
  if (endpoint_ != 0) context_->endpoints().keep(endpoint_, shared_from_this());
  EventBinding also;
  bool answered;
  {
    std::lock_guard lock(mutex_);
    closed_here_ = true;
    also = std::exchange(also_, {});
    if (!exposed_) peer_done_ = true;
    answered = answer_known_ && exposed_;
  }
  if (answered) {
    const int reason = reset_reason();
    tell_end(kOobClose, remote_endpoint_,
             reason == EPROTO || reason == ECONNABORTED ? ECONNRESET : 0);
  }
  if (remote_imported_) link_->release(remote_);
  staging_.clear();
  link_->alive() ? give_region_back() : peer_left(ECONNRESET, true);
}

// Once, when neither side touches it any more.
void Connection::give_region_back() {
  RegionArena::Region region;
  {
    std::lock_guard lock(mutex_);
    if (!closed_here_ || !peer_done_) return;
    region = std::exchange(region_, {});
  }
  if (region.bytes == 0) return;
  if (region_cookie_.length != 0) nic_.retire(region_cookie_.aperture);
  arena_->free(region);
  if (endpoint_ != 0) context_->endpoints().remove(endpoint_);
}

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
  tell_end(kOobReset, remote_endpoint_, 0);
}

void Connection::ask() const {
  if (context_->usable() && !peer_gone()) tell_end(kOobAsk, remote_endpoint_, 0);
}

int Connection::broken() {
  reset_hostile("impossible record in its ring");
  return -1;
}

void Connection::tell_end(std::uint32_t type, std::uint32_t to, int reason) const {
  OobMessage message{.to = to, .from = endpoint_, .type = type};
  if (reason != 0) put_payload(message, reason);
  (void)link_->send_oob(message);
}

}  // namespace clan::engine
