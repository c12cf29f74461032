// SentLog: what each packet under way carries, by number. Rings; not thread-safe.
#pragma once

#include <cstdint>

#include "link/udp/transport/range_set.h"
#include "link/udp/transport/ring_queue.h"

namespace clan::udp {

/// Something in a packet that has to be sent again when the packet is lost.
struct SentItem {
  enum class Kind : std::uint8_t { kPositions, kCredit, kClose, kChallenge, kResponse };
  Kind kind = Kind::kPositions;
  std::uint8_t channel = 0;
  Range range;
};

struct SentPacket {
  std::uint64_t sent_at = 0;
  std::uint64_t reported = 0;  ///< the largest number acknowledged in it, 0: none
  std::uint64_t first_item = 0;
  std::uint32_t bytes = 0;
  std::uint16_t items = 0;
  bool under_way = false;  ///< counts as sent and neither acknowledged nor lost
  bool lost = false;       ///< declared lost, may still prove otherwise
  bool mtu_probe = false;
  bool asks = false;  ///< the peer will acknowledge it
  /// What it takes of the congestion window.
  std::uint64_t weight() const { return mtu_probe ? 0 : bytes; }
};

class SentLog {
 public:
  std::uint64_t base() const { return base_; }
  std::uint64_t next() const { return base_ + packets_.size(); }
  bool has(std::uint64_t number) const { return number >= base_ && number < next(); }
  SentPacket& operator[](std::uint64_t number) { return packets_[number - base_]; }

  /// The packet with number next(); items are added to it until the next call.
  SentPacket& add() {
    SentPacket& p = packets_.push_back();
    p = {};
    p.first_item = first_item_ + items_.size();
    return p;
  }
  /// The last packet was not sent. Precondition: it has no items.
  void drop_last() { packets_.pop_back(); }
  void add_item(const SentItem& item) {
    SentPacket& p = packets_.back();
    // Messages that follow each other are one range.
    if (p.items > 0) {
      SentItem& last = items_.back();
      if (last.kind == item.kind && item.kind == SentItem::Kind::kPositions &&
          last.channel == item.channel && last.range.end == item.range.begin) {
        last.range.end = item.range.end;
        return;
      }
    }
    items_.push_back(item);
    ++p.items;
  }
  const SentItem& item(const SentPacket& p, std::size_t i) const {
    return items_[p.first_item - first_item_ + i];
  }

  void pop_front() {
    for (std::size_t i = packets_.front().items; i > 0; --i, ++first_item_) items_.pop_front();
    packets_.pop_front();
    ++base_;
  }

  void release_memory() {
    if (!packets_.empty()) return;
    packets_.release_memory();
    items_.release_memory();
  }

 private:
  std::uint64_t base_ = 1;
  RingQueue<SentPacket> packets_;
  RingQueue<SentItem> items_;
  std::uint64_t first_item_ = 0;
};

/// Skips a packet number now and then, whose acknowledgement proves that a peer acknowledges what
/// it has not received, to make us send faster than the path carries (RFC 9000, 21.4).
class OptimisticAckGuard {
 public:
  static constexpr std::uint64_t kFirst = 256;   ///< within so many packets the first is skipped
  static constexpr std::uint64_t kEvery = 8192;  ///< and the next within so many after it

  void begin(std::uint64_t random) { at_ = 2 + random % kFirst; }
  /// Whether `next` is not to be sent.
  bool due(std::uint64_t next) const { return next >= at_; }
  void skip(std::uint64_t number, std::uint64_t random) {
    last_ = number;
    at_ = number + 1 + random % kEvery;
  }
  /// Whether the number skipped last is in [first, last].
  bool within(std::uint64_t first, std::uint64_t last) const {
    return first <= last_ && last_ <= last;
  }

 private:
  std::uint64_t at_ = ~std::uint64_t{0};
  std::uint64_t last_ = ~std::uint64_t{0};
};

}  // namespace clan::udp
