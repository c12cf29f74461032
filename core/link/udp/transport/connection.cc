#include "link/udp/transport/connection.h"

#include <algorithm>
#include <cerrno>

#include "link/udp/transport/connection_parts.h"

namespace clan::udp {

Connection::Connection(EndpointSink& sink, const Options& options, std::uint64_t id,
                       const SocketAddress& address, std::uint64_t now)
    : sink_(sink),
      options_(options),
      id_(id),
      address_(address),
      send_{SendChannel(0), SendChannel(1), SendChannel(2), SendChannel(3)},
      congestion_(kBasePacket),
      heard_at_(now) {
  for (std::uint8_t c = 0; c < kChannels; ++c) {
    receive_[c] = std::make_unique<ReceiveChannel>(c, options.credit[c]);
  }
}

void Connection::establish(std::uint64_t peer_id, const Parameters& peer, std::uint64_t now) {
  peer_id_ = peer_id;
  heard_at_ = now;
  heard();  // a refusal of a HELLO says nothing of what comes after
  peer_packet_window_ = std::max<std::uint32_t>(peer.packet_window, 2);
  for (std::size_t c = 0; c < kChannels; ++c) send_[c].set_limit(peer.credit[c]);
  const std::size_t most = std::min<std::size_t>(options_.largest_packet, peer.largest_packet);
  largest_packet_ = std::clamp(most, kBasePacket, kLargestPacket);
  mtu_.start(largest_packet_, now);
}

void Connection::close(int err, std::uint64_t now) {
  // The first error stays, with its deadline: repetition must not put the end off.
  if (state_ == State::kClosing && (err == 0 || close_err_ != 0)) return;
  if (state_ == State::kHello || state_ == State::kAccepted) return end(err);
  if (state_ != State::kEstablished && state_ != State::kClosing) return;
  state_ = State::kClosing;
  close_err_ = err;
  close_needed_ = true;
  // Unacknowledged data may take as long as the peer lives; CLOSE itself three time-outs.
  if (err != 0) close_deadline_ = now + 3 * probe_timeout();
}

void Connection::end(int err) {
  state_ = State::kGone;
  go_down(err);
}

void Connection::go_down(int err) {
  if (told_down_) return;
  told_down_ = true;
  sink_.on_down(*this, err);
}

void Connection::on_reset(std::uint64_t number, std::uint64_t now) {
  if (!log_.has(number) || !log_[number].under_way) return;
  if (session_ && now < gone_at_) {
    // Any holder of the pre-shared key answers whatever id and number have a right MAC. So ask the
    // peer, which cannot answer without its keys; once, as a PING to such an end brings a RESET.
    const std::uint64_t at = now + 3 * probe_timeout();
    if (at >= gone_at_) return;
    gone_at_ = at;
    ping_ = true;
    return;
  }
  end(state_ == State::kClosing && close_sent_ ? close_err_ : ECONNRESET);
}

// Anybody that knows both ports can forge this, and a firewall may send it for a moment. So ask the
// peer, as for a RESET with keys, and believe the second only. A host says it once a second.
void Connection::on_refused(std::uint64_t now) {
  if (state_ == State::kAccepted || state_ >= State::kDraining) return;
  if (refused_since_ != kNever) {
    gone_at_ = std::min(gone_at_, refused_since_ + kRefusedWait);
    return;
  }
  refused_since_ = now;
  if (state_ == State::kHello) {
    hello_wait_ = std::min(hello_wait_, kRefusedWait / 2);
  } else {
    ping_ = true;
  }
}

void Connection::on_too_big(std::size_t bytes, std::uint64_t now) {
  mtu_.on_too_big(bytes, now);
  note_mtu();
}

std::uint64_t Connection::silence() const {
  return watchers_ > 0 ? std::min(options_.silence, options_.watched_silence) : options_.silence;
}

// A live peer gives credit, as the link takes all. One that gives none would block us for ever.
void Connection::note_credit(std::uint64_t now) {
  const bool starved = std::any_of(std::begin(send_), std::end(send_),
                                   [](const SendChannel& c) { return c.blocked_by_credit(); });
  if (!starved) {
    starved_since_ = kNever;
  } else if (starved_since_ == kNever) {
    starved_since_ = now;
  }
}

std::uint64_t Connection::next_timeout() const {
  if (state_ == State::kHello) return std::min({hello_at_, deadline_, gone_at_});
  if (state_ == State::kAccepted) return deadline_;
  if (state_ == State::kDraining) return std::min(close_deadline_, ack_at_);
  std::uint64_t at =
      std::min({ack_at_, loss_at_, gone_at_, close_deadline_, pace_at_ == 0 ? kNever : pace_at_});
  if (starved_since_ != kNever) at = std::min(at, starved_since_ + options_.dead);
  if (packets_under_way_ > 0) {
    at = std::min(at, last_asked_at_ + probe_wait());
  } else {
    at = std::min(at, heard_at_ + silence());
    at = std::min(at, mtu_.due_at());
  }
  return at;
}

void Connection::on_timeout(std::uint64_t now) {
  if (state_ == State::kAccepted || state_ == State::kHello) {
    if (now >= deadline_) {
      end(ETIMEDOUT);
    } else if (now >= gone_at_) {
      end(ECONNREFUSED);
    }
    return;
  }
  if (now >= close_deadline_) return end(close_err_);
  if (now >= gone_at_)
    return end(state_ == State::kClosing && close_sent_ ? close_err_ : ECONNRESET);
  if (now >= pace_at_) pace_at_ = 0;
  if (now >= ack_at_) {
    ack_now_ = true;
    ack_at_ = kNever;
  }
  if (state_ == State::kDraining) return;
  // One that has not been asked again may have answered while this process was stopped.
  const bool silent =
      timeouts_ > 0 && unanswered_since_ != kNever && now >= last_asked_at_ + probe_wait();
  const std::uint64_t waits_since = std::min(silent ? unanswered_since_ : kNever, starved_since_);
  if (waits_since != kNever && now - waits_since >= options_.dead) return end(ETIMEDOUT);
  if (now >= loss_at_) detect_loss(now);
  if (packets_under_way_ > 0) {
    if (now >= last_asked_at_ + probe_wait()) on_probe_timeout(now);
  } else if (now >= heard_at_ + silence()) {
    ping_ = true;
    heard_at_ = now;  // the next question in as long again; whether this one is answered is
                      // unanswered_since_'s
    if (now - released_at_ < options_.silence) return;
    released_at_ = now;
    for (SendChannel& c : send_) c.release_memory();
    for (auto& c : receive_) c->release_memory();
    log_.release_memory();
  }
}

}  // namespace clan::udp
