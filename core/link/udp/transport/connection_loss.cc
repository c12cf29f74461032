// Connection: what an acknowledgement or its absence means (RFC 9002).
#include <algorithm>

#include "link/udp/transport/connection.h"

namespace clan::udp {

// Without the backing off.
std::uint64_t Connection::probe_timeout() const {
  const std::uint64_t wait = rtt_.smoothed() + 4 * rtt_.variation() + kMostAckDelay;
  return std::clamp(wait, kLeastProbeWait, kMostProbeWait);
}

void Connection::packet_acked(std::uint64_t number, std::uint64_t now) {
  SentPacket& p = log_[number];
  if (p.lost) {  // it was late, not lost
    p.lost = false;
    if (!p.mtu_probe) ++counters_.spurious;
    const std::uint64_t late = largest_acked_ > number ? largest_acked_ - number + 1 : 0;
    reordering_ =
        static_cast<unsigned>(std::clamp<std::uint64_t>(late, reordering_, kMostReordering));
  } else if (p.under_way) {
    under_way_ -= p.weight();
    --packets_under_way_;
  }
  p.under_way = false;
  if (p.reported != 0) received_.stop_reporting(p.reported);
  if (p.mtu_probe) {
    mtu_.on_probe_acked(p.bytes, now);
    note_mtu();
  }
  mtu_.on_acked(p.bytes);
  for (std::size_t i = 0; i < p.items; ++i) {
    const SentItem item = log_.item(p, i);
    if (item.kind == SentItem::Kind::kPositions) {
      send_[item.channel].on_acked(item.range, [&](std::uint64_t token) {
        if (!told_down_ && user != nullptr) user->on_sent(item.channel, token);
      });
    } else if (item.kind == SentItem::Kind::kClose) {
      close_needed_ = false;
      close_deadline_ = now;  // done; the endpoint's timer takes it away
    }
  }
}

void Connection::item_lost(const SentItem& item) {
  switch (item.kind) {
    case SentItem::Kind::kPositions: send_[item.channel].on_lost(item.range); break;
    case SentItem::Kind::kCredit:
      credit_to_tell_ |= static_cast<std::uint8_t>(1u << item.channel);
      break;
    case SentItem::Kind::kClose: close_needed_ = true; break;
    case SentItem::Kind::kChallenge:
      if (challenges_ < 3) {
        challenge_to_send_ = challenge_ != 0;
      } else {
        challenge_ = 0;  // nobody there; the next address that it comes from is asked
      }
      break;
    // A question that has been acknowledged is not asked again.
    case SentItem::Kind::kResponse: response_to_send_ = true; break;
  }
}

void Connection::packet_lost(std::uint64_t number, std::uint64_t now) {
  SentPacket& p = log_[number];
  p.under_way = false;
  p.lost = true;
  under_way_ -= p.weight();
  --packets_under_way_;
  if (p.mtu_probe) {
    mtu_.on_probe_lost(now);  // larger than the path, and no fault of it
  } else {
    ++counters_.lost;
    congestion_.on_lost(1);
    if (mtu_.on_lost(p.bytes, p.sent_at, now)) note_mtu();
  }
  for (std::size_t i = 0; i < p.items; ++i) item_lost(log_.item(p, i));
}

void Connection::detect_loss(std::uint64_t now) {
  loss_at_ = kNever;
  const std::uint64_t patience =
      std::max(std::max(rtt_.smoothed(), rtt_.latest()) / 8 * 9, kLeastLossWait);
  acked_.for_each_missing(log_.base(), largest_acked_, [&](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t n = begin; n < end; ++n) {
      const SentPacket& p = log_[n];
      if (!p.under_way) continue;
      if (largest_acked_ - n >= reordering_ || p.sent_at + patience <= now) {
        packet_lost(n, now);
      } else {
        loss_at_ = std::min(loss_at_, p.sent_at + patience);
      }
    }
  });
  slide_log();
  // All is lost that waited: whether the peer acknowledges at all is still to be seen.
  if (unanswered_since_ != kNever && packets_under_way_ == 0) ping_ = true;
}

// Lost packets stay for a while: a late acknowledgement saves their bytes.
void Connection::slide_log() {
  while (log_.base() < log_.next()) {
    const SentPacket& p = log_[log_.base()];
    if (p.under_way || (p.lost && largest_acked_ < log_.base() + kRemembered)) break;
    log_.pop_front();
  }
  acked_.remove_below(log_.base());
}

void Connection::on_probe_timeout(std::uint64_t now) {
  ++timeouts_;
  ++counters_.timeouts;
  congestion_.on_silence(timeouts_);
  // The oldest that are under way leave again, without being given up.
  unsigned found = 0;
  std::uint32_t largest = 0;
  for (std::uint64_t n = log_.base(); n < log_.next() && found < 2; ++n) {
    const SentPacket& p = log_[n];
    if (!p.under_way || p.mtu_probe) continue;
    ++found;
    largest = std::max(largest, p.bytes);
    if (mtu_.on_timed_out(p.bytes, now)) note_mtu();
    for (std::size_t i = 0; i < p.items; ++i) item_lost(log_.item(p, i));
  }
  // The oldest may be small, and what leaves in their place is cut for a path MTU that is no more.
  for (std::uint64_t n = log_.next(); largest <= kBasePacket && n-- > log_.base();) {
    const SentPacket& p = log_[n];
    if (!p.under_way || p.mtu_probe) continue;
    if (mtu_.on_timed_out(p.bytes, now)) note_mtu();
    break;
  }
  // The challenge may be behind all that went to the old address, where nobody is.
  if (challenge_ != 0 && !challenge_to_send_) item_lost({SentItem::Kind::kChallenge, 0, {}});
  last_asked_at_ = now;
  probes_ = 2;
  ping_ = true;
  ping_had_no_room_ = false;  // it leaves alone
}

}  // namespace clan::udp
