// What callers of a MessageEndpoint (clan/message.h) hand it and get from it: plain data.
#pragma once

#include <clan/cookie.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace clan {

/// Number of a peer at an endpoint. Not reused while the endpoint lives.
using PeerIndex = std::uint32_t;

struct MessageOptions {
  /// Messages longer than this are offered and copied once instead of passing through the ring.
  std::uint32_t eager_bytes = 8 * 1024;
  /// Longest message accepted: bounds reassembly. A peer that sends a longer one is reset.
  std::uint64_t max_message = std::uint64_t{1} << 32;
};

/// A received message.
struct MessageInfo {
  PeerIndex from = 0;
  std::size_t size = 0;  ///< of the message; more than the buffer when it was cut short
  bool truncated = false;
};

/// A message at the front, not yet received.
struct IncomingMessage {
  PeerIndex from = 0;
  std::size_t size = 0;
  /// The bytes, valid until take() or drop(); empty while they lie in the sender's memory.
  std::span<const std::byte> bytes;
  /// The message lies in the sender's memory. post()'s header is here; `size` is without it.
  bool offered = false;
  std::span<const std::byte> header;
};

/// A message set aside in its sender's memory, out of the way of later ones. Plain data, valid
/// until MessageEndpoint::finish().
struct SetAside {
  PeerIndex from = 0;
  std::uint32_t slot = 0;
  RdmaCookie cookie;
  std::uint64_t size() const { return cookie.length; }
};

/// Bytes of header that a posted message can have.
constexpr std::size_t kMaxMessageHeader = 64;

/// A send that has been completed later.
struct SendCompletion {
  std::uint64_t cookie = 0;
  PeerIndex to = 0;
  int status = 0;  ///< 0 or errno
};

}  // namespace clan
