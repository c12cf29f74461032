// How long clients may keep the server waiting, all of them together.
#pragma once

#include <algorithm>
#include <cstdint>

namespace clan::rpc {

/// A time of `most_ns` for waits, of which a hundredth of the time that passes is given back.
class WaitBudget {
 public:
  explicit constexpr WaitBudget(std::uint64_t most_ns) : most_ns_(most_ns) {}

  /// Nanoseconds that are left for a wait that begins at `now_ns`.
  std::uint64_t left_ns(std::uint64_t now_ns) const { return most_ns_ - used_at(now_ns); }
  /// A wait of `waited_ns` has ended at `now_ns`.
  void spend(std::uint64_t now_ns, std::uint64_t waited_ns) {
    used_ns_ = std::min(most_ns_, used_at(now_ns) + waited_ns);
    at_ns_ = now_ns;
  }

 private:
  static constexpr std::uint64_t kBackAfter = 100;  ///< so many times as long
  std::uint64_t used_at(std::uint64_t now_ns) const {
    const std::uint64_t back = now_ns > at_ns_ ? (now_ns - at_ns_) / kBackAfter : 0;
    return used_ns_ - std::min(used_ns_, back);
  }

  std::uint64_t most_ns_, used_ns_ = 0, at_ns_ = 0;
};

}  // namespace clan::rpc
