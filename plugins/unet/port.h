// Port: a message endpoint of the engine and what goes through it: the channels to each peer, and
// the records of wire.h. An endpoint has one of its own; emulated ones share that of their node.
//
// Everything here is called with the port held (Held).
#pragma once

#include <clan/aperture.h>
#include <clan/message.h>

#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "node.h"
#include "wire.h"

namespace clan::unet::library {

class Endpoint;

/// What a tag of an endpoint stands for: the way to and from one other endpoint.
struct Channel {
  enum class State : std::uint8_t {
    kAccepting,  ///< nobody has asked for it yet
    kConnecting,
    kOpen,
    kOver,
  };
  Channel(Endpoint& owner, std::uint32_t name) : endpoint(owner), tag(name) {}
  bool has_peer() const { return state != State::kAccepting; }
  bool usable() const { return state == State::kConnecting || state == State::kOpen; }

  Endpoint& endpoint;
  const std::uint32_t tag;
  State state = State::kAccepting;
  std::uint64_t key = 0;
  PeerIndex peer = 0;
  std::uint32_t number = 0;  ///< our own, by which the peer knows it
  std::uint32_t serial = 0;  ///< of the request: an answer to an earlier one may be under way
  int reason = 0;            ///< why it is over: 0, the peer has closed it
  bool told = true;          ///< and the program knows
  std::uint64_t stuck = 0;   ///< the last round of sends in which the peer had no room
  RdmaCookie area;           ///< the peer's
  std::optional<RemoteAperture> direct;
};

class Port {
 public:
  /// `shared` by several threads: then Held takes a lock.
  static Result<std::shared_ptr<Port>> create(unet_node& node, const std::string& service,
                                              bool shared);
  Port(unet_node& owner, MessageEndpoint made, bool shared)
      : node(owner), messages(std::move(made)), shared_(shared) {}

  /// A number for an endpoint, under which peers ask for it.
  std::uint32_t add(Endpoint& endpoint);
  void remove(std::uint32_t number) { endpoints_[number] = nullptr; }

  /// Takes what has arrived, until `first` has something or there is no more.
  void take(const Endpoint& first);
  bool quiet() const { return messages.quiet() && backlog_.empty(); }

  // Channels, for their endpoints.
  Result<PeerIndex> reach(const Address& address, std::int64_t timeout_ms);
  Result<PeerIndex> reach(const std::string& service, std::int64_t timeout_ms);
  /// Registers a channel that is to be to `peer`, and asks it.
  Status connect(Channel& channel, PeerIndex peer, const ConnectRecord& record);
  /// Ends it at this end, and tells the peer.
  void close(Channel& channel);
  /// False: records that the peer has to get first have not gone yet.
  bool clear() { return backlog_.empty() || flush(); }

  unet_node& node;
  MessageEndpoint messages;
  std::uint32_t sleepers = 0;  ///< endpoints for which the descriptor is armed

 private:
  friend class Held;
  struct Incoming {  ///< by the peer's number
    Endpoint* endpoint = nullptr;
    Channel* channel = nullptr;
  };
  struct Peer {
    std::vector<Channel*> ours;  ///< by our number
    std::vector<Incoming> theirs;
  };
  struct Known {
    Address address;
    PeerIndex peer;
  };
  struct Waiting {
    PeerIndex peer;
    std::vector<std::byte> record;
  };

  bool arrive(PeerIndex from, std::span<const std::byte> record);
  bool arrive_data(Peer& peer, std::span<const std::byte> record);
  bool arrive_direct(Peer& peer, std::span<const std::byte> record);
  bool arrive_connect(PeerIndex from, std::span<const std::byte> record);
  bool arrive_accept(PeerIndex from, std::span<const std::byte> record);
  bool arrive_refuse(PeerIndex from, std::span<const std::byte> record);
  bool arrive_close(Peer& peer, std::span<const std::byte> record);
  /// The entry for the peer's channel of that number, which may be new. Null: no sound number.
  Incoming* incoming(Peer& peer, std::uint32_t number);
  static Channel* asking(const Peer& peer, std::uint32_t number, std::uint32_t serial);
  std::uint32_t number_for(Peer& peer, Channel& channel);
  void leave(PeerIndex peer, int reason);
  void take_departed();
  Peer& peer(PeerIndex index);
  template <typename Record>
  void say(PeerIndex to, const Record& record) {
    say_bytes(to, std::as_bytes(std::span(&record, 1)));
  }
  void say_bytes(PeerIndex to, std::span<const std::byte> record);
  bool flush();

  std::mutex mutex_;
  const bool shared_;
  std::vector<Peer> peers_;
  std::vector<Known> known_;
  std::vector<Endpoint*> endpoints_;
  std::uint32_t serial_ = 0;
  std::deque<Waiting> backlog_;  ///< for which there was no room
};

/// A port in use by this thread. If several threads use the port and others sleep, the descriptor
/// is armed again afterwards: what this thread has taken makes no new event.
class Held {
 public:
  explicit Held(Port& port) : port_(port) {
    if (port_.shared_) port_.mutex_.lock();
  }
  ~Held() {
    if (!port_.shared_) return;
    if (arms_ && port_.sleepers > 0 && !port_.messages.arm_fd()) port_.messages.ring_fd();
    port_.mutex_.unlock();
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  /// This thread takes nothing, or arms the descriptor itself.
  void leave_armed() { arms_ = false; }

 private:
  Port& port_;
  bool arms_ = true;
};

}  // namespace clan::unet::library
