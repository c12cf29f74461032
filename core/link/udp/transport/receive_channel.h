// ReceiveChannel: messages of one channel: placed in any order, released in the order sent.
//
//   positions:   released | arrived, not released | gap | arrived | gap ...
//                         front of incoming_    next_     beyond_
//
// What the link does not place is kept until it is released: credit bounds that memory. All frames
// are input: a contradiction is kBroken, and the connection ends. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "link/udp/transport/range_set.h"
#include "link/udp/wire/wire.h"

namespace clan::udp {

/// The user of a connection: the taker of its channels' messages.
class MessageSink {
 public:
  /// Takes bytes of an incomplete message, in any order, none twice. True: placed, not to be kept;
  /// the first piece's answer holds for the message.
  virtual bool on_fragment(std::uint8_t channel, std::span<const std::byte> header,
                           std::uint32_t total, std::uint32_t offset,
                           std::span<const std::byte> bytes) = 0;
  /// The message and all before it are complete. `payload` is empty when it was placed.
  virtual void on_message(std::uint8_t channel, std::span<const std::byte> header,
                          std::uint32_t total, std::span<const std::byte> payload) = 0;
  /// A message that was sent with `notify` has been acknowledged in full.
  virtual void on_sent(std::uint8_t channel, std::uint64_t token) = 0;

 protected:
  ~MessageSink() = default;
};

class ReceiveChannel {
 public:
  enum class Outcome {
    kTaken,
    kLater,   ///< too many gaps: the packet is to be treated as lost
    kBroken,  ///< the peer contradicts itself or ignores its credit
  };
  static constexpr std::size_t kMostGaps = 256;
  static constexpr std::size_t kMostPending = 4096;       ///< messages that wait for earlier ones
  static constexpr std::uint32_t kMostKept = 128 * 1024;  ///< of one message that is not placed
  static constexpr std::size_t kMostSpare = 2048;         ///< of a buffer that is kept for the next

  ReceiveChannel(std::uint8_t channel, std::uint64_t window)
      : window_(window), limit_(window), channel_(channel) {}

  Outcome receive(const Frame& frame, MessageSink& sink);

  std::uint64_t limit() const { return limit_; }
  /// Whether the peer should get more credit; raises it.
  bool raise_limit() {
    if (next_ + window_ < limit_ + window_ / 4) return false;
    limit_ = next_ + window_;
    return true;
  }
  void release_memory() {
    std::vector<Messages::node_type>().swap(spare_);
    beyond_.release_memory();
  }

 private:
  struct Incoming {
    std::uint64_t end = 0;  ///< position behind it
    std::uint32_t total = 0;
    std::uint8_t header_bytes = 0;
    enum class Where : std::uint8_t { kUnknown, kPlaced, kKept } where = Where::kUnknown;
    std::array<std::byte, kMostHeader> header;
    std::vector<std::byte> kept;
  };

  Incoming* message_of(const Frame& frame);
  bool take_new_bytes(Incoming& m, const Frame& frame, MessageSink& sink);
  void release(MessageSink& sink);

  std::uint64_t window_;
  std::uint64_t limit_;
  std::uint64_t next_ = 0;
  std::uint64_t released_ = 0;  ///< all messages that end here or before
  RangeSet beyond_;
  using Messages = std::map<std::uint64_t, Incoming>;
  Messages incoming_;                       ///< by position: those that are not released
  std::vector<Messages::node_type> spare_;  ///< of those that are, for the next: no allocation
  std::uint8_t channel_;
};

}  // namespace clan::udp
