// Connection: packets to the peer. Not sealed here: the endpoint adds check or tag.
#include <algorithm>
#include <cerrno>

#include "link/udp/transport/connection.h"
#include "link/udp/transport/connection_parts.h"

namespace clan::udp {
namespace {
constexpr std::size_t kLeastPacketRoom = 64;  ///< less is not worth a packet in a train
constexpr std::size_t kMostPadding = 40;      ///< to the length of the train's other packets
}  // namespace

bool Connection::close_due() const {
  if (!close_needed_) return false;
  if (close_err_ != 0) return true;
  return std::all_of(std::begin(send_), std::end(send_),
                     [](const SendChannel& c) { return c.done(); });
}

bool Connection::control_waits() const {
  return credit_to_tell_ != 0 || response_to_send_ || close_due();
}

// What the congestion window, the peer's packet window and pacing allow now.
Connection::Gate Connection::gate(std::uint64_t now) {
  if (packets_under_way_ >= peer_packet_window_) return Gate::kShut;
  const std::uint64_t packet = mtu_.current();
  // One packet always: without any under way, no acknowledgement would ever open the window.
  const bool room = under_way_ == 0 || under_way_ + packet <= congestion_.window();
  if (!room) congestion_.limited();
  const bool reserve =
      under_way_ < congestion_.window() + kUrgentReserve * packet && urgent_run_ < kFairTurn;
  if (room) {
    const std::uint64_t at = congestion_.wait_until(packet, rtt_, now);
    if (at == 0) return Gate::kOpen;
    pace_at_ = at;
  }
  return reserve ? Gate::kUrgent : Gate::kShut;
}

bool Connection::any_ready() const {
  return std::any_of(std::begin(send_), std::end(send_),
                     [](const SendChannel& c) { return c.ready(); });
}

bool Connection::wants_to_send(std::uint64_t now) {
  if (state_ == State::kDraining) return ack_due(now);
  if (state_ != State::kEstablished && state_ != State::kClosing) return false;
  if (ack_due(now) || control_waits() || ping_ || mtu_.due(now) != 0) return true;
  if (!any_ready()) return false;
  if (probes_ > 0) return true;
  const Gate g = gate(now);
  return g == Gate::kOpen || (g == Gate::kUrgent && send_[0].ready());
}

bool Connection::write_ack(Writer& out, SentPacket& packet, std::uint64_t now) {
  if (!received_.any()) {  // nothing to tell
    ack_now_ = false;
    ack_at_ = kNever;
    return false;
  }
  if (to_acknowledge_ == 0 && !ack_due(now)) return false;
  const std::uint64_t delay = (now - largest_came_at_) / 1000;
  if (!received_.write_ack(out, static_cast<std::uint32_t>(std::min<std::uint64_t>(delay, 0xffff)),
                           options_.packet_window)) {
    return false;
  }
  packet.reported = received_.largest();
  to_acknowledge_ = 0;
  ack_now_ = false;
  ack_at_ = kNever;
  return true;
}

// CREDIT, RESPONSE, CLOSE. True if any was written.
bool Connection::write_control(Writer& out) {
  const std::size_t before = out.size();
  for (std::uint8_t c = 0; c < kChannels; ++c) {
    if ((credit_to_tell_ & (1u << c)) == 0 || out.left() < 10) continue;
    out.number(static_cast<std::uint8_t>(FrameType::kCredit));
    out.number(c);
    out.number(receive_[c]->limit());
    log_.add_item({SentItem::Kind::kCredit, c, {}});
    credit_to_tell_ &= static_cast<std::uint8_t>(~(1u << c));
  }
  if (response_to_send_ && out.left() >= 9) {
    out.number(static_cast<std::uint8_t>(FrameType::kResponse));
    out.number(response_);
    log_.add_item({SentItem::Kind::kResponse, 0, {}});
    response_to_send_ = false;
  }
  if (close_due() && out.left() >= 5) {
    out.number(static_cast<std::uint8_t>(FrameType::kClose));
    out.number(static_cast<std::uint32_t>(close_err_));
    log_.add_item({SentItem::Kind::kClose, 0, {}});
    close_needed_ = false;
    close_sent_ = true;
  }
  return out.size() > before;
}

// Frames of one channel for as long as they fit. False: the packet is full for this channel.
bool Connection::write_channel(Writer& out, std::uint8_t channel, bool* any) {
  while (send_[channel].ready()) {
    Range carried;
    if (!send_[channel].write_frame(out, !*any, &carried)) return false;
    *any = true;
    log_.add_item({SentItem::Kind::kPositions, channel, carried});
  }
  return true;
}

// The channel after the one that had the last turn that waits, 0 if only channel 0 does.
std::uint8_t Connection::next_in_turn() {
  for (unsigned i = 1; i < kChannels; ++i) {
    const auto c = static_cast<std::uint8_t>(1 + (turn_ + i - 1) % (kChannels - 1));
    if (send_[c].ready()) return c;
  }
  return 0;
}

bool Connection::write_data(Writer& out, Gate g) {
  bool any = out.size() > kDataHeader;
  const bool something = any;
  // Mostly by urgency; now and then another channel begins, so that none waits for ever.
  std::uint8_t first = 0;
  if (g == Gate::kOpen && urgent_run_ + 1 >= kFairTurn) first = next_in_turn();
  bool wrote = false;
  for (std::uint8_t i = 0; i < kChannels; ++i) {
    const auto c = static_cast<std::uint8_t>(i == 0 ? first : i <= first ? i - 1 : i);
    if (c != 0 && g != Gate::kOpen) break;
    bool alone = wrote || something;
    const std::size_t before = out.size();
    const bool room = write_channel(out, c, &alone);
    if (out.size() > before) {
      if (c != 0 && !wrote) urgent_run_ = 0, turn_ = c;
      wrote = true;
    }
    if (!room && wrote) break;
  }
  if (first == 0 && wrote && next_in_turn() != 0) ++urgent_run_;
  return wrote;
}

void Connection::finish_packet(SentPacket& packet, std::size_t bytes, bool asks,
                               std::uint64_t now) {
  packet.sent_at = now;
  packet.bytes = static_cast<std::uint32_t>(bytes);
  packet.asks = asks;
  ++counters_.packets_sent;
  counters_.bytes_sent += bytes;
  if (!asks) return;
  packet.under_way = true;
  under_way_ += packet.weight();
  ++packets_under_way_;
  last_asked_at_ = now;
  if (unanswered_since_ == kNever) unanswered_since_ = now;
  congestion_.spend(bytes);
}

// PING when a timer wants one, at each quarter of the window (so that the peer does not wait then),
// and now and then with acknowledgements alone.
bool Connection::write_ping(Writer& out, bool asks, bool acked) {
  if (packets_under_way_ == 0) unpinged_bytes_ = 0;  // all before it has been acknowledged
  unpinged_bytes_ += out.size();
  const bool quarter = asks && unpinged_bytes_ > congestion_.window() / 4;
  const bool bare = !asks && acked && ++bare_acks_ >= kBareAcksPerPing;
  // That of a time-out leaves alone, behind what is sent again: the peer may refuse all data but
  // the first that it misses (ReceiveChannel, kLater), and acknowledges nothing beside them.
  const bool later = ping_ && asks && timeouts_ > 0;
  if (later || (!ping_ && !quarter && !bare)) return false;
  if (out.left() == 0) {
    ping_had_no_room_ = true;
    return false;
  }
  put_ping(out);
  return true;
}

void Connection::put_ping(Writer& out) {
  out.number(static_cast<std::uint8_t>(FrameType::kPing));
  ping_ = ping_had_no_room_ = false;
  unpinged_bytes_ = 0;
  bare_acks_ = 0;
}

// What is in the log for it was never under way, and is not missed.
void Connection::skip_number() {
  ack_guard_.skip(log_.next(), (*random_)());
  log_.add();
}

std::size_t Connection::build(std::span<std::byte> out, std::size_t limit, std::uint64_t now) {
  if (!wants_to_send(now)) return 0;
  const bool draining = state_ == State::kDraining;
  if (!draining && mtu_.due(now) != 0 && limit >= kLargestPacket) return build_mtu_probe(out, now);
  const std::size_t most = std::min({limit, mtu_.current(), out.size()});
  if (most < kDataHeader + seal_space() + kLeastPacketRoom) return 0;
  Gate g = draining || !any_ready() ? Gate::kShut : gate(now);
  if (probes_ > 0 && !draining) g = Gate::kOpen;

  if (log_.next() - log_.base() >= kMostLog) {  // the peer takes and never acknowledges
    end(ETIMEDOUT);
    return 0;
  }
  if (ack_guard_.due(log_.next())) [[unlikely]]
    skip_number();
  Writer w(out.first(most - seal_space()));
  w.zeros(kDataHeader);
  SentPacket& packet = log_.add();
  const std::uint64_t number = log_.next() - 1;
  const bool acked = write_ack(w, packet, now);
  bool asks = false;
  if (!draining) {
    asks = write_control(w);
    if (g != Gate::kShut && ping_had_no_room_ && w.left() > 0) {  // the data would leave none again
      put_ping(w);
      asks = true;
    }
    if (g != Gate::kShut) asks |= write_data(w, g);
    asks |= write_ping(w, asks, acked);
    // A shorter one is not answered with RESET where the connection is unknown.
    if (asks && w.size() + seal_space() < kLeastReset)
      w.zeros(kLeastReset - seal_space() - w.size());
  }
  // A packet that is shorter by a few bytes would end the train.
  const bool follows = limit == most && limit < kLargestPacket;
  if (follows && w.size() > kDataHeader && w.left() <= kMostPadding && any_ready())
    w.zeros(w.left());
  if (w.size() == kDataHeader) {
    log_.drop_last();
    return 0;
  }
  if (asks && probes_ > 0) --probes_;
  if (draining) ack_now_ = false, ack_at_ = kNever;
  const std::size_t bytes = w.size() + seal_space();
  Writer header(out);
  write_data_header(header, mode_, peer_id_, number);
  finish_packet(packet, bytes, asks, now);
  return bytes;
}

std::size_t Connection::build_mtu_probe(std::span<std::byte> out, std::uint64_t now) {
  const std::size_t bytes = mtu_.due(now);
  if (bytes > out.size()) return 0;
  Writer w(out.first(bytes - seal_space()));
  SentPacket& packet = log_.add();
  write_data_header(w, mode_, peer_id_, log_.next() - 1);
  w.number(static_cast<std::uint8_t>(FrameType::kPing));
  w.zeros(w.left());
  packet.mtu_probe = true;
  mtu_.on_probe_sent();
  finish_packet(packet, bytes, true, now);
  return bytes;
}

std::size_t Connection::build_challenge(std::span<std::byte> out, std::uint64_t now,
                                        SocketAddress* to) {
  if (!challenge_to_send_ || state_ > State::kClosing) return 0;
  challenge_to_send_ = false;
  ++challenges_;
  *to = candidate_;
  Writer w(out);
  SentPacket& packet = log_.add();
  write_data_header(w, mode_, peer_id_, log_.next() - 1);
  w.number(static_cast<std::uint8_t>(FrameType::kChallenge));
  w.number(challenge_);
  log_.add_item({SentItem::Kind::kChallenge, 0, {}});
  const std::size_t bytes = w.size() + seal_space();
  finish_packet(packet, bytes, true, now);
  return bytes;
}

}  // namespace clan::udp
