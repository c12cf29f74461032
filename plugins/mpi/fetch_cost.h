// Whether a message of some kilobytes had better be fetched by its receiver or pass through the
// channel, by what both have cost.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace clan::mpi {

/// What fetching from one peer costs, by the gets of this rank: the peer's of this rank's memory
/// are likely to cost as much. Any thread; of two that note at once one may be lost.
class FetchCost {
 public:
  /// The lengths that count. For messages of at least kLeast the fixed part of the cost is small,
  /// and the peer's distance decides.
  static constexpr std::size_t kLeast = 4096, kMost = 24 * 1024;
  static bool counts(std::size_t bytes) { return bytes >= kLeast && bytes <= kMost; }

  /// A get of so many bytes, which count, has taken `ns`.
  void note(std::size_t bytes, std::uint64_t ns) {
    const std::uint64_t ps = std::min<std::uint64_t>(ns * 1000 / bytes, kMostPs);
    // relaxed, both: a guess
    const std::uint64_t before = ps_.load(std::memory_order_relaxed);
    ps_.store(static_cast<std::uint32_t>(before == 0 ? ps : (7 * before + ps) / 8),
              std::memory_order_relaxed);
  }
  /// Some gets have been timed.
  // relaxed: a guess
  bool known() const { return ps_.load(std::memory_order_relaxed) != 0; }
  /// Such a message costs less fetched. `copy_ps`: what copying a byte into the channel costs, in
  /// ps; its receiver copies it once more.
  bool is_less(std::size_t bytes, std::uint32_t copy_ps) const {
    const std::uint64_t fetch_ps = ps_.load(std::memory_order_relaxed);  // relaxed: a guess
    return fetch_ps * bytes + kAnnouncementPs < 2 * std::uint64_t{copy_ps} * bytes;
  }

 private:
  /// The message has to be announced, and its receiver to say that it has it.
  static constexpr std::uint64_t kAnnouncementPs = 800'000;
  static constexpr std::uint64_t kMostPs = 1000;  ///< more is a pause of the thread

  std::atomic<std::uint32_t> ps_{0};  ///< for each byte; 0: unknown
};

}  // namespace clan::mpi
