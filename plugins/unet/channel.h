// Channel: what a tag of an endpoint stands for: the way to and from one other endpoint.
#pragma once

#include <clan/aperture.h>
#include <clan/message_types.h>

#include <optional>

namespace clan::unet::library {

class Endpoint;

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

}  // namespace clan::unet::library
