// Connection: one peer, once the handshake is done: a pure state machine over packets, a clock and
// channels.
//
//            send()                                    receive()
//               v                                          v
//   SendChannel 0..3 --- build() -> packet     packet -> frames -> ReceiveChannel 0..3 ->
//                                              EndpointSink
//               ^                                          |
//               +-- on_acked, on_lost <- SentLog <- ACK ---+
//
// Belongs to an Endpoint, which has the handshake, the connection ids and the socket's addresses.
// Times in ns of a monotonic clock; every call brings the time. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "link/udp/congestion.h"
#include "link/udp/mtu.h"
#include "link/udp/receive_channel.h"
#include "link/udp/received_numbers.h"
#include "link/udp/rtt.h"
#include "link/udp/security.h"
#include "link/udp/send_channel.h"
#include "link/udp/sent_log.h"
#include "link/udp/socket_address.h"
#include "link/udp/wire.h"

namespace clan::udp {

class Connection;
class Endpoint;

constexpr std::uint64_t kNever = ~std::uint64_t{0};
constexpr std::uint64_t kMillisecond = 1'000'000;
constexpr std::uint64_t kSecond = 1'000'000'000;

// docs/wire.md, Reliability.
constexpr std::uint64_t kLeastAckDelay = 100'000;
constexpr std::uint64_t kMostAckDelay = kMillisecond;
constexpr unsigned kAckEvery = 32;  ///< packets
/// packets whose fate is not known; more end the connection
constexpr std::uint64_t kMostLog = 1u << 17;
/// so that acknowledgements are acknowledged now and then
constexpr unsigned kBareAcksPerPing = 64;
constexpr std::uint64_t kLeastLossWait = 250'000;
constexpr std::uint64_t kLeastProbeWait = 2 * kMillisecond;
constexpr std::uint64_t kMostProbeWait = 300 * kMillisecond;
constexpr unsigned kMostReordering = 64;
constexpr std::uint64_t kRefusedWait = 300 * kMillisecond;
constexpr std::uint64_t kRemembered = 256;   ///< packets for which a lost one is still known
constexpr std::uint64_t kUrgentReserve = 8;  ///< packets channel 0 may exceed the window by
/// of so many packets, one begins with the channel that waits longest
constexpr unsigned kFairTurn = 8;

struct Options {
  std::uint32_t packet_window = 2048;             ///< packets the peer may have under way to us
  std::uint32_t largest_packet = kLargestPacket;  ///< that we can receive and our socket can send
  std::uint64_t credit[kChannels] = {256 * 1024, 256 * 1024, 256 * 1024, 8 << 20};
  std::uint64_t silence = 10 * kSecond;         ///< until an idle peer is asked whether it is there
  std::uint64_t watched_silence = kSecond / 2;  ///< the same while a thread sleeps until it sends
  std::uint64_t dead = 15 * kSecond;            ///< until a peer that does not answer is dead
  std::uint64_t handshake = 10 * kSecond;  ///< until a server that does not answer is not there
  /// until an accepted client that sends nothing is forgotten
  std::uint64_t half_open = 5 * kSecond;
  std::size_t most_half_open = 1024;
};

/// Who uses an Endpoint. In up-calls send() and close() are allowed, of any connection, nothing
/// else. A connection stays in memory until the endpoint's call that made the up-call has returned.
class EndpointSink {
 public:
  /// Somebody wants to connect and has shown that it is at that address. 0 and a greeting in
  /// return, or an errno.
  virtual int on_request(const SocketAddress& from, std::span<const std::byte> greeting,
                         std::span<std::byte> answer, std::size_t* answer_bytes) = 0;
  virtual void on_established(Connection& connection, std::span<const std::byte> greeting) = 0;
  /// MessageSink, with the connection.
  virtual bool on_fragment(Connection& connection, std::uint8_t channel,
                           std::span<const std::byte> header, std::uint32_t total,
                           std::uint32_t offset, std::span<const std::byte> bytes) = 0;
  virtual void on_message(Connection& connection, std::uint8_t channel,
                          std::span<const std::byte> header, std::uint32_t total,
                          std::span<const std::byte> payload) = 0;
  /// A message with `notify` has been acknowledged in full.
  virtual void on_sent(Connection& connection, std::uint8_t channel, std::uint64_t token) = 0;
  /// The last call about a connection. 0: closed in good order by the peer or by us.
  virtual void on_down(Connection& connection, int err) = 0;

 protected:
  ~EndpointSink() = default;
};

struct ConnectionCounters {
  std::uint64_t packets_sent = 0, packets_received = 0, bytes_sent = 0, bytes_received = 0;
  std::uint64_t lost = 0, spurious = 0, timeouts = 0, duplicates = 0, acks_sent = 0, later = 0;
};

class Connection final : private MessageSink {
 public:
  enum class State : std::uint8_t { kHello, kAccepted, kEstablished, kClosing, kDraining, kGone };

  Connection(EndpointSink& sink, const Options& options, std::uint64_t id,
             const SocketAddress& address, std::uint64_t now);
  ~Connection();

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
  std::size_t memory_bytes() const;
  void* user = nullptr;  ///< the sink's own
  /// The payload of a message that was not copied is copied now; its memory is not looked at any
  /// more.
  void detach(std::uint8_t channel, std::uint64_t token) { send_[channel].detach(token); }
  void detach_all() {
    for (SendChannel& c : send_) c.detach_all();
  }

 private:
  friend class Endpoint;

  // --- for Endpoint ------------------------------------------------------------------------------
  void send(std::uint8_t channel, const Message& message) { send_[channel].push(message); }
  /// err 0: after all that has been sent; otherwise at once, and what is not acknowledged may be
  /// lost.
  void close(int err, std::uint64_t now);
  void establish(std::uint64_t peer_id, const Parameters& peer, std::uint64_t now);
  /// A DATA packet that has passed its check: its frames. `from`: where it came from.
  void receive(std::uint64_t number, std::span<const std::byte> frames, std::size_t packet_bytes,
               const SocketAddress& from, std::uint64_t now);
  bool seen(std::uint64_t number) const { return received_.seen(number); }
  /// Writes the next packet, not sealed, of at most `limit` bytes with room for a tag. 0: nothing
  /// to send now.
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
  std::uint64_t silence() const {
    return watchers_ > 0 ? std::min(options_.silence, options_.watched_silence) : options_.silence;
  }
  /// The peer is there, whatever others have said.
  void heard() { gone_at_ = refused_since_ = kNever; }
  void go_down(int err);
  /// Tells the sink and is gone.
  void end(int err) {
    state_ = State::kGone;
    go_down(err);
  }
  bool gone() const { return state_ == State::kGone; }

  // MessageSink
  bool on_fragment(std::uint8_t channel, std::span<const std::byte> header, std::uint32_t total,
                   std::uint32_t offset, std::span<const std::byte> bytes) override {
    return told_down_ || sink_.on_fragment(*this, channel, header, total, offset, bytes);
  }
  void on_message(std::uint8_t channel, std::span<const std::byte> header, std::uint32_t total,
                  std::span<const std::byte> payload) override {
    if (!told_down_) sink_.on_message(*this, channel, header, total, payload);
  }

  // connection_receive.cc
  enum class Verdict { kFine, kLater, kBroken };
  Verdict take_frames(std::span<const std::byte> frames, const SocketAddress& from,
                      std::uint64_t now, bool* asks, bool* at_once);
  Verdict take_message(const Frame& frame);
  bool take_ack(const Frame& frame, std::uint64_t now);
  void take_response(std::uint64_t value, const SocketAddress& from, std::uint64_t now);
  void note_to_acknowledge(bool at_once, std::uint64_t now);

  // connection_loss.cc
  void packet_acked(std::uint64_t number, std::uint64_t now);
  void packet_lost(std::uint64_t number, std::uint64_t now);
  void item_lost(const SentItem& item);
  void detect_loss(std::uint64_t now);
  void slide_log();
  std::uint64_t probe_timeout() const;
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
  std::uint8_t next_in_turn();
  bool write_channel(Writer& out, std::uint8_t channel, bool* any);
  std::size_t build_mtu_probe(std::span<std::byte> out, std::uint64_t now);
  std::size_t seal_space() const { return session_ ? kTagBytes : 0; }
  void finish_packet(SentPacket& packet, std::size_t bytes, bool asks, std::uint64_t now);

  EndpointSink& sink_;
  const Options& options_;
  const std::uint64_t id_;
  std::uint64_t peer_id_ = 0;
  SocketAddress address_;
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
  RangeSet acked_;  ///< packet numbers from log_.base() on
  std::uint64_t largest_acked_ = 0;
  std::uint64_t round_end_ = 1;
  std::uint64_t under_way_ = 0;  ///< bytes
  std::uint32_t packets_under_way_ = 0;
  std::uint32_t peer_packet_window_ = 2;
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

  unsigned watchers_ = 0;          ///< threads that sleep until the peer sends something
  std::uint64_t released_at_ = 0;  ///< when memory that is not needed was last given back
  /// When those are believed that have said that the peer has gone (its host, or a RESET with
  /// keys), unless it is heard.
  std::uint64_t gone_at_ = kNever;
  std::uint64_t refused_since_ = kNever;  ///< its host's first refusal since it was last heard

  std::uint64_t ack_at_ = kNever;
  bool ack_now_ = false;
  unsigned to_acknowledge_ = 0;
  unsigned bare_acks_ = 0;
  std::uint64_t largest_came_at_ = 0;
  bool ping_ = false;
  std::uint64_t unpinged_bytes_ = 0;
  unsigned turn_ = 0;  ///< the channel besides 0 that began a packet last
  /// packets since then that channel 0 began while others waited
  unsigned urgent_run_ = 0;
  std::uint8_t credit_to_tell_ = 0;  ///< a bit per channel

  SocketAddress candidate_;      ///< where the peer may have moved to
  std::uint64_t challenge_ = 0;  ///< 0: none
  bool challenge_to_send_ = false;
  unsigned challenges_ = 0;
  std::uint64_t response_ = 0;
  bool response_to_send_ = false;

  // The endpoint's notes.
  const std::function<std::uint64_t()>* random_ = nullptr;  ///< the endpoint's, for challenges
  Mode mode_ = Mode::kOff;
  std::unique_ptr<Session> session_;
  std::size_t heap_index_ = ~std::size_t{0};
  std::uint64_t heap_time_ = kNever;
  bool queued_ = false;
  std::uint64_t deadline_ = kNever;  ///< of the handshake
  std::uint64_t hello_at_ = kNever;
  std::uint64_t hello_wait_ = 0;
  std::unique_ptr<struct HandshakeState> handshake_;
};

}  // namespace clan::udp
