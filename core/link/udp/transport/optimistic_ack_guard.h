// OptimisticAckGuard: skips a packet number now and then. A peer that acknowledges it
// acknowledges what it has not received, so that we send faster than the path carries (RFC 9000,
// 21.4). Not thread-safe.
#pragma once

#include <cstdint>

namespace clan::udp {

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
