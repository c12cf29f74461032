#include "link/udp/congestion.h"

#include <algorithm>

namespace clan::udp {

void Congestion::restart(std::uint32_t packet_bytes) {
  packet_ = packet_bytes;
  window_ = kFirstPackets * packet_;
  round_least_ = ~std::uint64_t{0};
  acked_ = lost_ = 0;
  above_ = 0;
  limited_ = competitive_ = false;
  slow_start_ = true;
  tokens_ = static_cast<std::int64_t>(kLeastBurst);
  filled_at_ = 0;
}

void Congestion::clamp() { window_ = std::clamp(window_, kLeastPackets * packet_, kMostWindow); }

void Congestion::shrink(std::uint64_t percent_left) {
  window_ = window_ / 100 * percent_left;
  slow_start_ = false;
}

void Congestion::end_round(const RttEstimator& rtt) {
  if (acked_ + lost_ == 0) return;
  const std::uint64_t base = rtt.least();
  const std::uint64_t target = std::max(kLeastTarget, base / 2);
  const std::uint64_t delay =
      round_least_ == ~std::uint64_t{0} || round_least_ < base ? 0 : round_least_ - base;
  const bool lossy = lost_ >= 3 && lost_ * 20 > lost_ + acked_;
  if (delay <= target) above_ = 0, competitive_ = false;
  if (lossy) {
    shrink(70);
  } else if (competitive_) {
    if (lost_ > 0) {
      shrink(70);
    } else if (limited_) {
      window_ += packet_;
    }
  } else if (delay > target) {
    shrink(100 - std::min<std::uint64_t>(50, 80 * (delay - target) / delay));
    if (++above_ >= kPatience) competitive_ = true;
  } else if (limited_) {
    if (slow_start_ && delay > target / 2) slow_start_ = false;
    if (slow_start_) {
      window_ *= 2;
    } else {
      window_ += 8 * packet_ + window_ / 4 / 1024 * ((target - delay) * 1024 / target);
    }
  }
  clamp();
  round_least_ = ~std::uint64_t{0};
  acked_ = lost_ = 0;
  limited_ = false;
}

void Congestion::on_silence(unsigned times) {
  if (times < 2) return;
  window_ = kLeastPackets * packet_;
  slow_start_ = true;
}

std::uint64_t Congestion::wait_until(std::uint64_t bytes, const RttEstimator& rtt, std::uint64_t now) {
  const std::uint64_t round = std::max<std::uint64_t>(rtt.smoothed(), 1000);
  const std::uint64_t gain = slow_start_ ? 8 : 5;  // quarters of a window per round trip
  // Bytes per ns as a fraction window * gain / (4 * round); a window is at most 2^26, a second 2^30.
  const std::uint64_t per_round = window_ * gain / 4;
  const auto most =
      static_cast<std::int64_t>(std::max(kLeastBurst, per_round * std::uint64_t{1'000'000} / round));
  const std::uint64_t elapsed = std::min<std::uint64_t>(now - filled_at_, 1'000'000'000);
  const std::uint64_t fresh = per_round * elapsed / round;
  if (fresh > 0) {
    tokens_ = std::min(most, tokens_ + static_cast<std::int64_t>(fresh));
    filled_at_ = now;
  }
  if (tokens_ >= 0 || bytes == 0) return 0;  // a packet may borrow: it is paid for by the next
  const auto missing = static_cast<std::uint64_t>(-tokens_);
  return now + missing * round / per_round + 1;
}

}  // namespace clan::udp
