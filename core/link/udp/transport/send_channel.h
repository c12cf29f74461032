// SendChannel: the messages of one channel until all their bytes are acknowledged.
//
//   acknowledged | some acknowledged, some under way, some lost | not sent yet | more credit
//                first message                                  next_          end_          limit_
//
// Everything is ranges of positions (docs/wire.md). Lost ranges leave first. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "link/udp/transport/range_set.h"
#include "link/udp/transport/ring_queue.h"
#include "link/udp/wire/wire.h"
#include "nic/pinned_payload.h"

namespace clan::udp {

/// What the sender of a message says. The header is copied.
struct Message {
  std::span<const std::byte> header;   ///< at most kMostHeader
  std::span<const std::byte> payload;  ///< at most kMostPayload
  bool copy = true;                    ///< false: the payload stays where it is until on_sent
  bool notify = false;                 ///< call on_sent(token) when all of it has been acknowledged
  std::uint64_t token = 0;
  /// What is let go of once this message and all before it have been acknowledged.
  std::shared_ptr<nic::PinnedPayload> kept = {};
};

class SendChannel {
 public:
  explicit SendChannel(std::uint8_t channel = 0) : channel_(channel) {}

  void push(const Message& message);
  /// False: it is no more than before.
  bool set_limit(std::uint64_t limit) {
    if (limit <= limit_) return false;
    limit_ = limit;
    return true;
  }

  /// Something may be sent now.
  bool ready() const { return !lost_.empty() || new_ready(); }
  bool blocked_by_credit() const { return lost_.empty() && next_ < end_ && !new_ready(); }
  /// Nothing is left to send or to be acknowledged.
  bool done() const { return messages_.empty(); }
  std::uint64_t queued_bytes() const { return end_ - next_; }

  /// Writes one frame if a sensible one fits; sets its positions. `alone`: first in its packet.
  bool write_frame(Writer& out, bool alone, Range* carried);

  /// These positions are lost: they leave again.
  void on_lost(const Range& range);
  /// These have arrived. Calls sent(token) for each message that is complete and wants it.
  template <typename F>
  void on_acked(const Range& range, F&& sent) {
    if (range.end <= acked_through_ || range.begin >= end_) return;
    lost_.remove(range.begin, range.end);
    acked_.add(std::max(range.begin, acked_through_), range.end);
    if (acked_.front().begin > acked_through_) return;
    acked_through_ = acked_.front().end;
    acked_.remove_below(acked_through_);
    while (!messages_.empty() && messages_.front().end() <= acked_through_) {
      Outgoing& m = messages_.front();
      const bool notify = m.notify;
      const std::uint64_t token = m.token;
      if (m.kept) std::exchange(m.kept, nullptr)->let_go();
      messages_.pop_front();
      if (next_index_ > 0) --next_index_;
      if (notify) sent(token);
    }
  }

  /// Copies payloads that were not copied, of the message with this token or of all.
  void detach(std::optional<std::uint64_t> token);

  /// Gives back what an idle channel does not need.
  void release_memory();

 private:
  struct Outgoing {
    std::uint64_t position = 0;
    std::uint64_t token = 0;
    const std::byte* payload = nullptr;
    std::uint32_t total = 0;
    std::uint8_t header_bytes = 0;
    bool notify = false;
    std::array<std::byte, kMostHeader> header;
    /// the payload when it was copied; kept for the slot's next user
    std::vector<std::byte> owned;
    std::shared_ptr<nic::PinnedPayload> kept;
    std::uint64_t end() const { return position + kHeaderCharge + total; }
    void detach() {
      if (payload == owned.data() || total == 0) return;
      owned.assign(payload, payload + total);
      payload = owned.data();
    }
  };

  bool new_ready() const { return next_ < end_ && next_ + kHeaderCharge < limit_; }
  std::size_t index_of(std::uint64_t position) const;
  bool write_piece(Writer& out, const Outgoing& m, std::uint64_t from, std::uint64_t to, bool alone,
                   Range* carried) const;

  RingQueue<Outgoing> messages_;
  RangeSet lost_;
  RangeSet acked_;  ///< beyond acked_through_
  std::uint64_t acked_through_ = 0;
  std::uint64_t next_ = 0;
  std::size_t next_index_ = 0;  ///< of the message next_ is in
  std::uint64_t end_ = 0;
  std::uint64_t limit_ = 0;
  std::uint8_t channel_;
};

}  // namespace clan::udp
