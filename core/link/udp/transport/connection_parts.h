// Parts of a UDP connection beside its channels: constants, options, state with an owner, the sink.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "link/udp/wire/security.h"
#include "link/udp/wire/socket_address.h"
#include "link/udp/wire/wire.h"

namespace clan::udp {

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
/// for what a process that ends has sent to be acknowledged, while some of it is
constexpr std::uint64_t kMostGoodBye = 30 * kSecond;
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
  std::size_t most_connections = 16'384;  ///< with which a server accepts no further one
};

/// What a connection counts.
struct ConnectionCounters {
  std::uint64_t packets_sent = 0, packets_received = 0, bytes_sent = 0;
  std::uint64_t lost = 0, spurious = 0, timeouts = 0, duplicates = 0;
};

/// A peer that comes from another address proves it: CHALLENGE, RESPONSE (docs/wire.md).
struct PathQuestion {
  SocketAddress candidate_;      ///< where the peer may have moved to
  std::uint64_t challenge_ = 0;  ///< 0: none
  bool challenge_to_send_ = false;
  unsigned challenges_ = 0;
  std::uint64_t response_ = 0;
  bool response_to_send_ = false;
};

/// What a connection needs until it is established, and is then given back.
struct HandshakeState {
  std::vector<std::byte> packet;    ///< client: HELLO; server: ACCEPT; sent again as it is
  std::size_t signed_bytes = 0;     ///< of it: what the MAC covers
  std::vector<std::byte> greeting;  ///< the peer's, for on_established
  std::unique_ptr<KeyShare> share;
  bool cookie_seen = false;  ///< client: a RETRY has come
};

/// The Endpoint's part of a Connection: keys, handshake, its place among timers and senders.
struct EndpointNotes {
  const std::function<std::uint64_t()>* random_ = nullptr;  ///< the endpoint's, for challenges
  Mode mode_ = Mode::kOff;
  std::unique_ptr<Session> session_;
  std::size_t heap_index_ = ~std::size_t{0};
  std::uint64_t heap_time_ = kNever;
  bool queued_ = false;
  std::uint64_t deadline_ = kNever;  ///< of the handshake
  std::uint64_t hello_at_ = kNever;
  std::uint64_t hello_wait_ = 0;
  std::unique_ptr<HandshakeState> handshake_;
};

class Connection;

/// The user of an Endpoint. Up-calls, also a MessageSink's, may call send() and close() of any
/// connection, nothing else. A connection outlives the endpoint's call that made the up-call.
class EndpointSink {
 public:
  /// Asks for a connection, from a proved address. Returns 0 and a greeting, or an errno.
  virtual int on_request(const SocketAddress& from, std::span<const std::byte> greeting,
                         std::span<std::byte> answer, std::size_t* answer_bytes) = 0;
  /// What takes the connection's messages has to be its `user` by the end of this.
  virtual void on_established(Connection& connection, std::span<const std::byte> greeting) = 0;
  /// The last call about a connection. 0: closed in good order by the peer or by us.
  virtual void on_down(Connection& connection, int err) = 0;

 protected:
  ~EndpointSink() = default;
};

}  // namespace clan::udp
