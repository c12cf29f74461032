// Congestion: how much of a connection may be under way, from round trips and loss (docs/wire.md).
//
// Judged once per round (a packet's departure to its acknowledgement): below the target delay the
// window grows, above it shrinks; loss counts from 5 % on. Pacing is a bucket that fills at 1.25
// windows per round trip. Sources: Swift (Kumar et al., SIGCOMM 2020), TIMELY (Mittal et al.,
// SIGCOMM 2015), eRPC's bypass (Kalia et al., NSDI 2019), Copa's competitive mode (Arun and
// Balakrishnan, NSDI 2018). Times in ns. Not thread-safe.
#pragma once

#include <cstdint>

#include "link/udp/transport/rtt.h"

namespace clan::udp {

class Congestion {
 public:
  static constexpr std::uint64_t kLeastPackets = 4;
  static constexpr std::uint64_t kDrainPackets = 2;
  static constexpr std::uint64_t kFirstPackets = 32;
  static constexpr std::uint64_t kMostWindow = 64u << 20;
  static constexpr std::uint64_t kLeastTarget = 1'000'000;
  /// a window up to which the target is larger,
  static constexpr std::uint64_t kScaledPackets = 256;
  static constexpr double kScale = 16;  ///< by up to so many targets
  static constexpr std::uint64_t kLeastBurst = 64 * 1024;
  /// drain intervals above the target before we think of a rival
  static constexpr unsigned kPatience = 4;
  /// twice as long each time until it holds 50 round trips
  static constexpr std::uint64_t kDrainEvery = 500'000'000;

  explicit Congestion(std::uint32_t packet_bytes)
      : window_(kFirstPackets * packet_bytes), packet_(packet_bytes) {}

  /// A new path: forgets everything.
  void restart(std::uint32_t packet_bytes) { *this = Congestion(packet_bytes); }
  /// The window holds the least number of packets of this size, or nothing would leave any more.
  void set_packet_bytes(std::uint32_t bytes) {
    packet_ = bytes;
    clamp();
  }

  std::uint64_t window() const { return window_; }
  bool slow_start() const { return slow_start_; }

  /// The window has kept something from being sent, so it may grow.
  void limited() { limited_ = true; }
  void on_acked(std::uint64_t rtt, std::uint64_t packets) {
    round_least_ = rtt < round_least_ ? rtt : round_least_;
    acked_ += packets;
  }
  void on_lost(std::uint64_t packets) { lost_ += packets; }
  /// All that was under way when the round began has been acknowledged or lost.
  void end_round(const RttEstimator& rtt, std::uint64_t now);
  /// Nothing has been heard for `times` probe time-outs in a row.
  void on_silence(unsigned times);

  /// Pacing: 0 when `bytes` may leave now, else when.
  std::uint64_t wait_until(std::uint64_t bytes, const RttEstimator& rtt, std::uint64_t now);
  void spend(std::uint64_t bytes) { tokens_ -= static_cast<std::int64_t>(bytes); }

 private:
  void clamp();
  bool drain(const RttEstimator& rtt, std::uint64_t now);
  void judge(std::uint64_t delay, const RttEstimator& rtt, std::uint64_t now);
  bool has_rival(std::uint64_t delay, std::uint64_t patience, std::uint64_t now);
  std::uint64_t target_delay(const RttEstimator& rtt) const;
  static std::uint64_t drain_interval(const RttEstimator& rtt);
  void shrink(std::uint64_t percent_left);

  std::uint64_t window_;
  std::uint64_t packet_;
  std::uint64_t round_least_ = ~std::uint64_t{0};
  std::uint64_t acked_ = 0;
  std::uint64_t lost_ = 0;
  std::uint64_t above_since_ = 0;  ///< the delay has been above the target since; 0: it is not
  std::uint64_t above_delay_ = 0;  ///< what it was then
  std::uint64_t above_window_ = 0;
  std::uint64_t draining_until_ = 0;  ///< 0: does not drain
  std::uint64_t saved_window_ = 0;
  std::uint64_t drained_at_ = 0;
  /// the shortest round trip since the queue has filled again
  std::uint64_t low_ = ~std::uint64_t{0};
  bool limited_ = false;
  bool slow_start_ = true;
  bool competitive_ = false;
  std::int64_t tokens_ = static_cast<std::int64_t>(kLeastBurst);
  std::uint64_t filled_at_ = 0;
};

}  // namespace clan::udp
