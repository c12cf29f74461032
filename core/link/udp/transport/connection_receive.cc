// Connection: packets from the peer.
#include <algorithm>
#include <cerrno>

#include "link/udp/transport/connection.h"
#include "link/udp/transport/connection_parts.h"

namespace clan::udp {

void Connection::receive(std::uint64_t number, std::span<const std::byte> frames,
                         const SocketAddress& from, std::uint64_t now) {
  if (state_ == State::kDraining || state_ == State::kGone) return;
  heard();
  ++counters_.packets_received;
  const bool newest = number > received_.largest();
  bool asks = false, at_once = false;
  const Outcome outcome = take_frames(frames, from, now, &asks, &at_once);
  if (outcome == Outcome::kBroken) {
    received_.add(number);                                     // once is enough
    if (state_ == State::kClosing && close_err_ != 0) return;  // ends already
    go_down(EPROTO);
    close(EPROTO, now);
    return;
  }
  if (outcome == Outcome::kLater) return;
  heard_at_ = now;
  const bool gap = received_.add(number);
  if (newest) {
    largest_came_at_ = now;
    if (!(from == address_) && challenge_ == 0 && state_ != State::kDraining) {
      candidate_ = from;
      challenge_ = (*random_)() | 1;  // 0: none
      challenge_to_send_ = true;
      challenges_ = 0;
    }
  }
  if (asks) note_to_acknowledge(gap || at_once, now);
}

void Connection::note_to_acknowledge(bool at_once, std::uint64_t now) {
  ++to_acknowledge_;
  if (at_once || to_acknowledge_ >= kAckEvery) {
    ack_now_ = true;
    return;
  }
  const std::uint64_t delay = std::clamp(rtt_.smoothed() / 4, kLeastAckDelay, kMostAckDelay);
  ack_at_ = std::min(ack_at_, now + delay);
}

Connection::Outcome Connection::take_frames(std::span<const std::byte> frames,
                                            const SocketAddress& from, std::uint64_t now,
                                            bool* asks, bool* at_once) {
  Reader in(frames);
  Frame frame;
  while (in.left() > 0) {
    if (!read_frame(in, &frame)) return Outcome::kBroken;
    if (frame.type != FrameType::kPadding && frame.type != FrameType::kAck) *asks = true;
    // The link knows that this is over: only what we sent still matters.
    if (told_down_ && frame.type != FrameType::kAck) continue;
    switch (frame.type) {
      case FrameType::kPadding: break;
      case FrameType::kPing: *at_once = true; break;
      case FrameType::kAck:
        if (!take_ack(frame, now)) return Outcome::kBroken;
        break;
      case FrameType::kCredit:
        if (send_[frame.channel].set_limit(frame.position)) starved_since_ = kNever;
        break;
      case FrameType::kData:
      case FrameType::kFragment:
        if (const Outcome o = take_message(frame); o != Outcome::kTaken) return o;
        break;
      case FrameType::kClose:
        *at_once = true;
        state_ = State::kDraining;  // for as long as the acknowledgement takes
        close_deadline_ = now + probe_timeout();
        go_down(frame.value == 0 ? 0 : ECONNRESET);
        return Outcome::kTaken;  // nothing comes after it
      case FrameType::kChallenge:
        response_ = frame.value;
        response_to_send_ = true;
        break;
      case FrameType::kResponse: take_response(frame.value, from, now); break;
    }
  }
  return Outcome::kTaken;
}

Connection::Outcome Connection::take_message(const Frame& frame) {
  if (user == nullptr) return Outcome::kTaken;
  ReceiveChannel& channel = *receive_[frame.channel];
  const Outcome outcome = channel.receive(frame, *user);
  if (outcome == Outcome::kTaken && channel.raise_limit())
    credit_to_tell_ |= static_cast<std::uint8_t>(1u << frame.channel);
  return outcome;
}

// False: acknowledges what was never sent.
bool Connection::take_ack(const Frame& frame, std::uint64_t now) {
  if (frame.value >= log_.next()) return false;
  peer_packet_window_ = std::max<std::uint32_t>(frame.packet_window, 2);
  std::uint64_t newly = 0;
  bool any_asked = false;
  std::uint64_t rtt = 0;
  const std::uint64_t base = log_.base();
  if (log_.has(frame.value) && !acked_.contains(frame.value) && log_[frame.value].asks) {
    rtt = now - log_[frame.value].sent_at;
    rtt_.sample(rtt, std::uint64_t{frame.delay_us} * 1000, now);
  }
  largest_acked_ = std::max(largest_acked_, frame.value);
  for (std::uint32_t i = 0; i < frame.ranges; ++i) {
    if (ack_guard_.within(frame.range[i].first, frame.range[i].last)) return false;
    if (frame.range[i].last < base) break;
    const std::uint64_t first = std::max(frame.range[i].first, base);
    acked_.for_each_missing(first, frame.range[i].last + 1,
                            [&](std::uint64_t begin, std::uint64_t end) {
                              for (std::uint64_t n = begin; n < end; ++n) {
                                any_asked |= log_[n].asks;
                                ++newly;
                                packet_acked(n, now);
                              }
                            });
    acked_.add(first, frame.range[i].last + 1);
  }
  if (newly == 0) return true;
  congestion_.on_acked(rtt != 0 ? rtt : kNever, newly);
  if (any_asked) {
    timeouts_ = probes_ = 0;
    unanswered_since_ = packets_under_way_ > 0 ? now : kNever;
  }
  detect_loss(now);
  if (largest_acked_ >= round_end_) {
    congestion_.end_round(rtt_, now);
    round_end_ = log_.next();
  }
  return true;
}

void Connection::take_response(std::uint64_t value, const SocketAddress& from, std::uint64_t now) {
  if (challenge_ == 0 || value != challenge_ || !(from == candidate_)) return;
  challenge_ = 0;
  challenge_to_send_ = false;
  address_ = candidate_;
  rtt_ = {};
  congestion_.restart(kBasePacket);
  mtu_.start(largest_packet_, now);
}

}  // namespace clan::udp
