// What a message endpoint knows of each of its peers, and of the message in front.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "clan/message.h"
#include "engine/connection/connect_attempt.h"
#include "engine/connection/connection.h"

namespace clan::engine {

/// Payload of RecordType::kOffer, followed by up to kMaxMessageHeader bytes of header.
struct OfferRecord {
  RdmaCookie cookie;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
};

/// A message that we send, and that stays in our memory until the peer has copied it.
struct MessageOffer {
  bool open = false;
  RdmaCookie cookie;
  std::uint64_t user_cookie = 0;
  std::span<const std::byte> message;
  // The header of a message that goes in fragments, which goes first.
  std::array<std::byte, kMaxMessageHeader> header{};
  std::size_t header_bytes = 0;
  std::size_t total() const { return header_bytes + message.size(); }
};
struct MessagePeer {
  std::shared_ptr<Connection> connection;   ///< null: connecting, or that has failed
  std::shared_ptr<ConnectAttempt> attempt;  ///< while connecting
  int failure = 0;                          ///< why it could not be connected to
  PeerIndex index = 0;
  bool hot = false;
  bool departed = false;
  enum class Held : std::uint8_t { kNo, kYes, kShowAgain };
  Held held = Held::kNo;             ///< kYes: by hold(), nothing of it is read
  bool chosen = false;               ///< we connected to it, it did not connect to us
  std::vector<MessageOffer> offers;  ///< 64 when the first is made
  std::uint64_t open_offers = 0;
  // A fragmented message being put together.
  std::vector<std::byte> assembly;
  bool assembled = false;
  // Our messages that travel in fragments, because the peer cannot copy from our memory.
  std::deque<MessageOffer> fragmenting;
  std::size_t fragment_sent = 0;
};
/// A peer that take_departed() has not named yet.
struct MessageDeparture {
  PeerIndex peer = 0;
  int err = 0;  ///< what recv() has yet to say about it; 0 = nothing
  int reason = 0;
};
/// The record that peek() found.
struct MessageFront {
  MessagePeer* peer = nullptr;
  shm::RingRecord record;
  bool assembled = false;
  bool offered = false;
  OfferRecord offer;
  std::span<const std::byte> header;  ///< of an offer, in the ring
  std::size_t size = 0;

  /// Whether `record`, of that peer, is a message by itself: then it is in front.
  [[gnu::always_inline]] bool is_message(MessagePeer& from) {
    if (record.head.type() != static_cast<std::uint8_t>(RecordType::kMessage)) [[unlikely]]
      return false;
    peer = &from;
    size = record.head.length();
    assembled = offered = false;
    return true;
  }
};

}  // namespace clan::engine
