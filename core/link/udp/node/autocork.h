// Autocork: whether a small message waits for others to share its packet, as tcp_autocorking in
// Linux. A program that answers fifty clients before it looks again pays for a few packets.
//
//   the first message since the thread has looked    leaves at once: a ping-pong waits for nothing
//   the others                                       wait until it looks or sleeps, or would fill a
//                                                    packet
//   one has waited for more than kMostNs             none waits for a while: the program computes
//                                                    between what it sends
//
// The caller has another thread look soon where this one does not (the node's tick). Times are
// monotonic_ns(). Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace clan::udp {

class Autocork {
 public:
  /// With one more message it is a packet yet: a train may have to take another way than that.
  static constexpr std::size_t kMostBytes = 1000;
  static constexpr std::uint64_t kMostNs = 50'000;
  static constexpr std::uint64_t kLeastBarNs = 1'000'000, kMostBarNs = 256'000'000;

  /// Bytes of a frame that is queued.
  void add(std::size_t bytes) { bytes_ += bytes; }
  /// They could leave. True: they may wait.
  bool holds(std::uint64_t now) {
    const bool first = !std::exchange(has_sent_, true);
    if (first || bytes_ >= kMostBytes || now < barred_until_) return false;
    if (since_ == 0) since_ = now;
    return now - since_ <= kMostNs;
  }
  /// Some wait.
  bool any() const { return since_ != 0; }
  /// All that is queued leaves.
  void leave(std::uint64_t now) {
    bytes_ = 0;
    if (since_ == 0) return;
    if (now - since_ > kMostNs) {
      barred_until_ = now + bar_ns_;
      bar_ns_ = std::min(2 * bar_ns_, kMostBarNs);
    } else {
      bar_ns_ = kLeastBarNs;
    }
    since_ = 0;
  }
  /// The thread looks for packets.
  void look() { has_sent_ = false; }

 private:
  std::size_t bytes_ = 0;
  std::uint64_t since_ = 0;  ///< when the first was held; 0: none is
  std::uint64_t barred_until_ = 0;
  std::uint64_t bar_ns_ = kLeastBarNs;
  bool has_sent_ = false;  ///< since the last look
};

}  // namespace clan::udp
