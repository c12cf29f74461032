#include "link/udp/transport/congestion.h"

#include <algorithm>
#include <cmath>

namespace clan::udp {

// A small window is allowed more delay than a large one (Swift's flow scaling): connections that
// share a queue reach equal windows, also when they saw different shortest round trips.
std::uint64_t Congestion::target_delay(const RttEstimator& rtt) const {
  const std::uint64_t target = std::max(kLeastTarget, rtt.least() / 4);
  const double packets = static_cast<double>(window_) / static_cast<double>(packet_);
  const double least = 1 / std::sqrt(static_cast<double>(kLeastPackets));
  const double most = 1 / std::sqrt(static_cast<double>(kScaledPackets));
  const double scale = std::clamp((1 / std::sqrt(packets) - most) / (least - most), 0.0, 1.0);
  return target + static_cast<std::uint64_t>(kScale * scale * static_cast<double>(target));
}

// One of a few lengths, so that connections with about the same round trip have the same.
std::uint64_t Congestion::drain_interval(const RttEstimator& rtt) {
  std::uint64_t interval = kDrainEvery;
  while (interval < 50 * rtt.smoothed()) interval *= 2;
  return interval;
}

void Congestion::clamp() { window_ = std::clamp(window_, kLeastPackets * packet_, kMostWindow); }

void Congestion::shrink(std::uint64_t percent_left) {
  window_ = window_ / 100 * percent_left;
  slow_start_ = false;
}

// A queue that stays while we shrink, and while our kind would have drained it, is another's.
bool Congestion::has_rival(std::uint64_t delay, std::uint64_t patience, std::uint64_t now) {
  if (above_since_ == 0) {
    above_since_ = now;
    above_delay_ = delay;
    above_window_ = window_;
  }
  if (now - above_since_ < patience) return false;
  above_since_ = 0;
  return delay >= above_delay_ / 10 * 9 && window_ < above_window_ / 4 * 3;
}

// Two packets at most now and then, until the queue has drained: a connection that began on a full
// queue has never seen the shortest round trip, and would take too much. By the clock, so that all
// connections of this host do it together and see the bottom.
bool Congestion::drain(const RttEstimator& rtt, std::uint64_t now) {
  if (draining_until_ != 0) {
    if (now < draining_until_) return true;
    draining_until_ = 0;
    window_ = saved_window_;
    clamp();  // packets may have grown meanwhile
    return true;
  }
  if (drained_at_ == 0) drained_at_ = now;
  const std::uint64_t interval = drain_interval(rtt);
  // The queue falls below what it was since it filled: others drain. Together we see the bottom.
  const bool others = now - drained_at_ > interval / 2 && low_ != ~std::uint64_t{0} &&
                      round_least_ + 20'000 < low_ - low_ / 16;
  if (now - drained_at_ > interval / 4) low_ = std::min(low_, round_least_);
  const bool due = now / interval != drained_at_ / interval;
  if (!limited_ || !(others || due)) return false;
  drained_at_ = now;
  low_ = ~std::uint64_t{0};
  saved_window_ = window_;
  window_ = kDrainPackets * packet_;
  draining_until_ = now + rtt.smoothed() / 2 * 5;
  return true;
}

void Congestion::judge(std::uint64_t delay, const RttEstimator& rtt, std::uint64_t now) {
  // An idle path, as in a ping-pong: no target is shorter, and nothing below changes the window.
  if (delay <= kLeastTarget && !limited_ && lost_ == 0) {
    above_since_ = 0, competitive_ = false;
    clamp();
    return;
  }
  const std::uint64_t target = target_delay(rtt);
  const bool lossy = lost_ >= 3 && lost_ * 20 > lost_ + acked_;
  if (delay <= target) above_since_ = 0, competitive_ = false;
  if (lossy) {
    shrink(70);
  } else if (competitive_) {
    if (lost_ > 0) {
      shrink(70);
    } else if (limited_) {
      window_ += packet_;
    }
  } else if (delay > target) {
    competitive_ = has_rival(delay, kPatience * drain_interval(rtt), now);
    shrink(100 - std::min<std::uint64_t>(50, 80 * (delay - target) / delay));
  } else if (limited_) {
    if (slow_start_ && delay > target / 2) slow_start_ = false;
    if (slow_start_) {
      window_ *= 2;
    } else {
      window_ += 8 * packet_ + window_ / 4 / 1024 * ((target - delay) * 1024 / target);
    }
  }
  clamp();
}

void Congestion::end_round(const RttEstimator& rtt, std::uint64_t now) {
  if (acked_ + lost_ == 0) return;
  const std::uint64_t base = rtt.least();
  const std::uint64_t delay =
      round_least_ == ~std::uint64_t{0} || round_least_ < base ? 0 : round_least_ - base;
  if (!drain(rtt, now)) judge(delay, rtt, now);
  round_least_ = ~std::uint64_t{0};
  acked_ = lost_ = 0;
  limited_ = false;
}

void Congestion::on_silence(unsigned times) {
  if (times < 2) return;
  window_ = kLeastPackets * packet_;
  slow_start_ = true;
  draining_until_ = 0;
}

std::uint64_t Congestion::wait_until(std::uint64_t bytes, const RttEstimator& rtt,
                                     std::uint64_t now) {
  const std::uint64_t round = std::max<std::uint64_t>(rtt.smoothed(), 1000);
  const std::uint64_t gain = slow_start_ ? 8 : 5;  // quarters of a window per round trip
  // Bytes per ns as a fraction window * gain / (4 * round); window <= 2^26, a second is 2^30 ns.
  const std::uint64_t per_round = window_ * gain / 4;
  const auto most = static_cast<std::int64_t>(
      std::max(kLeastBurst, per_round * std::uint64_t{1'000'000} / round));
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
