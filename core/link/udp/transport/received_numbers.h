// ReceivedNumbers: packet numbers that have come, to drop duplicates and to acknowledge. Not
// thread-safe. Below the lowest of kMostRanges ranges all count as received: a very late packet is
// dropped and sent again under another number.
#pragma once

#include <cstdint>

#include "link/udp/transport/range_set.h"
#include "link/udp/wire/wire.h"

namespace clan::udp {

class ReceivedNumbers {
 public:
  static constexpr std::size_t kMostRanges = 64;
  static constexpr std::uint64_t kMostTold = 1u << 20;  ///< of one range; nobody has more under way

  bool seen(std::uint64_t number) const { return number < floor_ || ranges_.contains(number); }
  std::uint64_t largest() const { return ranges_.empty() ? 0 : ranges_.back().end - 1; }
  bool any() const { return !ranges_.empty(); }

  /// Adds a number that is not seen(). True: a gap begins or is filled: tell the peer.
  bool add(std::uint64_t number) {
    const bool in_order = number == largest() + 1 || !any();
    ranges_.add(number, number + 1);
    if (ranges_.size() > kMostRanges) {
      floor_ = ranges_.front().end;
      ranges_.remove_below(floor_);
    }
    return !in_order;
  }

  /// The peer knows of all that has been reported up to `number`.
  void stop_reporting(std::uint64_t number) { report_from_ = std::max(report_from_, number); }

  /// Writes an ACK frame. False when there is no room for it.
  bool write_ack(Writer& out, std::uint32_t delay_us, std::uint32_t packet_window) const {
    if (!any()) return false;
    std::size_t count = 1;
    while (count < ranges_.size() && count < kMostAckRanges &&
           ranges_[ranges_.size() - count - 1].end > report_from_) {
      ++count;
    }
    if (out.left() < 20) return false;
    count = std::min(count, 1 + (out.left() - 20) / 8);
    out.number(static_cast<std::uint8_t>(FrameType::kAck));
    out.number(static_cast<std::uint8_t>(count - 1));
    out.number(static_cast<std::uint16_t>(std::min<std::uint32_t>(delay_us, 0xffff)));
    out.number(packet_window);
    out.number(largest());
    std::uint64_t above = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const Range& r = ranges_[ranges_.size() - 1 - i];
      if (i > 0) out.number(static_cast<std::uint32_t>(above - r.end - 1));
      above = std::max(r.begin, r.end - std::min<std::uint64_t>(r.end, kMostTold));
      out.number(static_cast<std::uint32_t>(r.end - above - 1));
    }
    return true;
  }

 private:
  RangeSet ranges_;
  std::uint64_t floor_ = 1;  ///< number 0 is never used
  std::uint64_t report_from_ = 0;
};

}  // namespace clan::udp
