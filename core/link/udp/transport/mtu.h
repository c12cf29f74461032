// MtuDiscovery: the largest packet that reaches the peer, by padded PINGs (RFC 8899). Times in ns.
//
// Three losses of a probe end the search for 10 minutes. Three full packets in a row that only a
// probe time-out noticed, with none of their size acknowledged, are a black hole: back to the base,
// search anew. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "link/udp/wire/wire.h"

namespace clan::udp {

class MtuDiscovery {
 public:
  static constexpr std::size_t kSteps[] = {1452, 1472, 4052, 8952, 16'000, 32'000, kLargestPacket};
  static constexpr unsigned kTries = 3;
  static constexpr unsigned kBlackHole = 3;
  static constexpr unsigned kVanished = 6;
  static constexpr std::uint64_t kAgain = 600'000'000'000;

  /// `most`: what both ends can handle.
  void start(std::size_t most, std::uint64_t now) {
    most_ = most;
    current_ = std::min(kBasePacket, most);
    search_from(now);
  }
  std::size_t current() const { return current_; }

  /// The size of the probe that should leave now, or 0.
  std::size_t due(std::uint64_t now) const {
    if (probing_ || now < next_search_) return 0;
    return candidate();
  }
  /// When due() may change by time alone; ~0: not.
  std::uint64_t due_at() const {
    return probing_ || candidate() == 0 ? ~std::uint64_t{0} : next_search_;
  }
  void on_probe_sent() { probing_ = true; }
  void on_probe_acked(std::size_t bytes, std::uint64_t now) {
    probing_ = false;
    tries_ = 0;
    suspects_ = vanished_ = 0;
    current_ = std::max(current_, bytes);
    next_search_ = now;
  }
  void on_probe_lost(std::uint64_t now) {
    probing_ = false;
    if (++tries_ < kTries) return;
    tries_ = 0;
    next_search_ = now + kAgain;
  }
  /// The kernel has refused a packet of `bytes`: the device is smaller.
  void on_too_big(std::size_t bytes, std::uint64_t now) {
    most_ = std::min(most_, bytes - 1);
    if (current_ > most_) current_ = std::min(kBasePacket, most_);
    search_from(now);
  }
  void on_acked(std::size_t bytes) {
    if (bytes > kBasePacket) suspects_ = vanished_ = 0;
  }
  /// A probe time-out found a packet of `bytes` unanswered. True: it was one too many.
  bool on_timed_out(std::size_t bytes, std::uint64_t now) {
    if (bytes <= kBasePacket || current_ <= kBasePacket || ++suspects_ < kBlackHole) return false;
    fall_back(now);
    return true;
  }
  /// A packet was lost while later ones arrived: a path for small ones only has no time-outs. True:
  /// one too many.
  bool on_lost(std::size_t bytes, std::uint64_t sent_at, std::uint64_t now) {
    // What left before the last was found to be lost may have gone in the same burst.
    if (bytes <= kBasePacket || current_ <= kBasePacket || sent_at < vanished_at_) return false;
    vanished_at_ = now;
    if (++vanished_ < kVanished) return false;
    fall_back(now);
    return true;
  }

 private:
  static constexpr std::uint64_t kSettle = 1'000'000'000;

  void fall_back(std::uint64_t now) {
    current_ = kBasePacket;
    search_from(now + kSettle);
  }
  void search_from(std::uint64_t when) {
    probing_ = false;
    tries_ = suspects_ = vanished_ = 0;
    next_search_ = when;
  }
  std::size_t candidate() const {
    for (std::size_t step : kSteps) {
      if (step > current_) return step <= most_ ? step : 0;
    }
    return 0;
  }

  std::size_t current_ = kBasePacket;
  std::size_t most_ = kBasePacket;
  std::uint64_t next_search_ = ~std::uint64_t{0};
  unsigned tries_ = 0;
  unsigned suspects_ = 0;
  /// losses in a row, each of a packet that left after the last was noticed
  unsigned vanished_ = 0;
  std::uint64_t vanished_at_ = 0;  ///< when the last was noticed
  bool probing_ = false;
};

}  // namespace clan::udp
