// RttEstimator: smoothed, variation, minimum of 10 s (RFC 9002, 5). In ns. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

namespace clan::udp {

class RttEstimator {
 public:
  static constexpr std::uint64_t kInitial = 20'000'000;
  static constexpr std::uint64_t kHalfFilter = 5'000'000'000;

  void sample(std::uint64_t rtt, std::uint64_t peer_delay, std::uint64_t now) {
    latest_ = std::max<std::uint64_t>(rtt, 1);
    remember_least(now);
    // Subtract the peer's waiting, but never below the fastest that the path has been seen to be.
    std::uint64_t adjusted = latest_;
    if (latest_ >= std::min(least_now_, least_before_) + peer_delay) adjusted -= peer_delay;
    if (smoothed_ == 0) {
      smoothed_ = adjusted;
      variation_ = adjusted / 2;
      return;
    }
    const std::uint64_t off = smoothed_ > adjusted ? smoothed_ - adjusted : adjusted - smoothed_;
    variation_ = (3 * variation_ + off) / 4;
    smoothed_ = (7 * smoothed_ + adjusted) / 8;
  }

  bool known() const { return smoothed_ != 0; }
  std::uint64_t smoothed() const { return known() ? smoothed_ : kInitial; }
  std::uint64_t latest() const { return known() ? latest_ : kInitial; }
  std::uint64_t variation() const { return known() ? variation_ : kInitial / 2; }
  /// The smallest of the last 5 to 10 s.
  std::uint64_t least() const { return known() ? std::min(least_now_, least_before_) : kInitial; }

 private:
  void remember_least(std::uint64_t now) {
    if (least_now_ == kNone || now - period_began_ > kHalfFilter) {
      least_before_ = now - period_began_ > 2 * kHalfFilter ? kNone : least_now_;
      least_now_ = latest_;
      period_began_ = now;
    } else {
      least_now_ = std::min(least_now_, latest_);
    }
  }

  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  std::uint64_t smoothed_ = 0;
  std::uint64_t variation_ = 0;
  std::uint64_t latest_ = 0;
  std::uint64_t least_now_ = kNone;
  std::uint64_t least_before_ = kNone;
  std::uint64_t period_began_ = 0;
};

}  // namespace clan::udp
