// Connection: one peer after the handshake: a pure state machine over packets, clock and channels.
//
//            send()                                    receive()
//               v                                          v
//   SendChannel 0..3 --- build() -> packet     packet -> frames -> ReceiveChannel 0..3 ->
//                                              EndpointSink
//               ^                                          |
//               +-- on_acked, on_lost <- SentLog <- ACK ---+
//
// Belongs to an Endpoint, which has the handshake, the connection ids and the socket's addresses.
// Times in ns of a monotonic clock, passed in. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "link/udp/transport/congestion.h"
#include "link/udp/transport/connection_parts.h"
#include "link/udp/transport/mtu.h"
#include "link/udp/transport/receive_channel.h"
#include "link/udp/transport/received_numbers.h"
#include "link/udp/transport/rtt.h"
#include "link/udp/transport/send_channel.h"
#include "link/udp/transport/sent_log.h"
#include "link/udp/wire/socket_address.h"
#include "link/udp/wire/wire.h"

namespace clan::udp {

class Endpoint;

class Connection final : private PathQuestion, private EndpointNotes {
 public:
  enum class State : std::uint8_t { kHello, kAccepted, kEstablished, kClosing, kDraining, kGone };

  Connection(EndpointSink& sink, const Options& options, std::uint64_t id,
             const SocketAddress& address, std::uint64_t now);

  // --- for the user of the endpoint, through it -------------------------------------------------
  State state() const { return state_; }
  const SocketAddress& address() const { return address_; }
  std::uint64_t id() const { return id_; }
  const RttEstimator& rtt() const { return rtt_; }
  const Congestion& congestion() const { return congestion_; }
  const MtuDiscovery& mtu() const { return mtu_; }
  const ConnectionCounters& counters() const { return counters_; }
  std::uint64_t queued_bytes(std::uint8_t channel) const { return send_[channel].queued_bytes(); }
  std::uint64_t under_way() const { return under_way_; }
  MessageSink* user = nullptr;  ///< set by the endpoint's user; null: messages are dropped
  /// The payload of a message that was not copied is copied now; its memory is not read any more.
  void detach(std::uint8_t channel, std::uint64_t token) { send_[channel].detach(token); }
  void detach_all() {
    for (SendChannel& c : send_) c.detach({});
  }

 private:
  friend class Endpoint;

  // --- for Endpoint ------------------------------------------------------------------------------
  void send(std::uint8_t channel, const Message& message) { send_[channel].push(message); }
  /// Closes. err 0: after all that has been sent; otherwise at once, losing what is unacknowledged.
  void close(int err, std::uint64_t now);
  void establish(std::uint64_t peer_id, const Parameters& peer, std::uint64_t now);
  /// A DATA packet that has passed its check: its frames. `from`: where it came from.
  void receive(std::uint64_t number, std::span<const std::byte> frames, const SocketAddress& from,
               std::uint64_t now);
  bool seen(std::uint64_t number) const { return received_.seen(number); }
  /// Writes the next packet, unsealed, within `limit` with a tag's room. 0: nothing to send now.
  std::size_t build(std::span<std::byte> out, std::size_t limit, std::uint64_t now);
  /// The same for a packet that has to go to another address than address().
  std::size_t build_challenge(std::span<std::byte> out, std::uint64_t now, SocketAddress* to);
  bool wants_to_send(std::uint64_t now);
  std::uint64_t next_timeout() const;
  void on_timeout(std::uint64_t now);
  void on_reset(std::uint64_t number, std::uint64_t now);
  void on_too_big(std::size_t bytes, std::uint64_t now);
  /// The peer's host has said that nobody has its port.
  void on_refused(std::uint64_t now);
  void note_credit(std::uint64_t now);  ///< after what may have changed whether credit is missing
  std::uint64_t silence() const;
  /// The peer is there, whatever others have said.
  void heard() { gone_at_ = refused_since_ = kNever; }
  void go_down(int err);
  /// Tells the sink and is gone.
  void end(int err);
  bool gone() const { return state_ == State::kGone; }

  // connection_receive.cc
  using Outcome = ReceiveChannel::Outcome;
  Outcome take_frames(std::span<const std::byte> frames, const SocketAddress& from,
                      std::uint64_t now, bool* asks, bool* at_once);
  Outcome take_message(const Frame& frame);
  bool take_ack(const Frame& frame, std::uint64_t now);
  void take_response(std::uint64_t value, const SocketAddress& from, std::uint64_t now);
  void note_to_acknowledge(bool at_once, std::uint64_t now);

  // connection_loss.cc
  void packet_acked(std::uint64_t number, std::uint64_t now);
  void packet_lost(std::uint64_t number, std::uint64_t now);
  void item_lost(const SentItem& item);
  void detect_loss(std::uint64_t now);
  void slide_log();
  void note_mtu() { congestion_.set_packet_bytes(static_cast<std::uint32_t>(mtu_.current())); }
  std::uint64_t probe_timeout() const;
  std::uint64_t probe_wait() const {
    return std::min(probe_timeout() << std::min(timeouts_, 10u), kMostProbeWait);
  }
  void on_probe_timeout(std::uint64_t now);

  // connection_send.cc
  enum class Gate { kShut, kUrgent, kOpen };
  Gate gate(std::uint64_t now);
  bool control_waits() const;
  bool close_due() const;
  bool any_ready() const;
  bool ack_due(std::uint64_t now) const { return ack_now_ || now >= ack_at_; }
  bool write_ack(Writer& out, SentPacket& packet, std::uint64_t now);
  bool write_control(Writer& out);
  bool write_data(Writer& out, Gate gate);
  bool write_ping(Writer& out, bool asks, bool acked);
  void put_ping(Writer&out), skip_number();
  std::uint8_t next_in_turn();
  bool write_channel(Writer& out, std::uint8_t channel, bool* any);
  std::size_t build_mtu_probe(std::span<std::byte> out, std::uint64_t now);
  std::size_t seal_space() const { return session_ ? kTagBytes : 0; }
  void finish_packet(SentPacket& packet, std::size_t bytes, bool asks, std::uint64_t now);

  EndpointSink& sink_;
  const Options& options_;
  const std::uint64_t id_;
  std::uint64_t peer_id_ = 0;
  SocketAddress address_, local_;  ///< the peer's; ours that it has asked, all 0: any
  State state_ = State::kHello;
  bool told_down_ = false;
  int close_err_ = 0;
  std::uint64_t close_deadline_ = kNever;
  bool close_sent_ = false;
  bool close_needed_ = false;

  SendChannel send_[kChannels];
  std::unique_ptr<ReceiveChannel> receive_[kChannels];
  ReceivedNumbers received_;
  SentLog log_;
  OptimisticAckGuard ack_guard_;
  RangeSet acked_;  ///< packet numbers from log_.base() on
  std::uint64_t largest_acked_ = 0;
  std::uint64_t round_end_ = 1;
  std::uint64_t under_way_ = 0;  ///< bytes
  std::uint32_t packets_under_way_ = 0;
  std::uint32_t peer_packet_window_ = 2;
  std::size_t largest_packet_ = kBasePacket;  ///< that both ends can handle
  unsigned reordering_ = 3;
  RttEstimator rtt_;
  Congestion congestion_;
  MtuDiscovery mtu_;
  ConnectionCounters counters_;

  std::uint64_t loss_at_ = kNever;
  std::uint64_t last_asked_at_ = 0;  ///< when the last packet left that asks for an acknowledgement
  unsigned timeouts_ = 0;            ///< probe time-outs in a row
  unsigned probes_ = 0;              ///< packets that may leave whatever the window says
  std::uint64_t pace_at_ = 0;
  std::uint64_t heard_at_ = 0;
  /// the last progress of what waits for an acknowledgement
  std::uint64_t unanswered_since_ = kNever;
  std::uint64_t starved_since_ = kNever;  ///< a channel waits for credit and has been given none
  unsigned watchers_ = 0;                 ///< threads that sleep until the peer sends something
  std::uint64_t released_at_ = 0;         ///< when memory that is not needed was last given back
  /// When to believe that the peer has gone (its host, or a RESET with keys), unless it is heard.
  std::uint64_t gone_at_ = kNever;
  std::uint64_t refused_since_ = kNever;  ///< its host's first refusal since it was last heard

  std::uint64_t ack_at_ = kNever;
  bool ack_now_ = false;
  unsigned to_acknowledge_ = 0;
  unsigned bare_acks_ = 0;
  std::uint64_t largest_came_at_ = 0;
  bool ping_ = false;
  bool ping_had_no_room_ = false;
  std::uint64_t unpinged_bytes_ = 0;
  unsigned turn_ = 0;  ///< the channel besides 0 that began a packet last
  /// packets since then that channel 0 began while others waited
  unsigned urgent_run_ = 0;
  std::uint8_t credit_to_tell_ = 0;  ///< a bit per channel
};

}  // namespace clan::udp
