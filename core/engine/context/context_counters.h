// Counters of a context.
#pragma once

#include <atomic>
#include <cstdint>

namespace clan::engine {

/// Counters that several threads raise; read by anyone.
struct CoreCounters {
  std::atomic<std::uint64_t> connections_opened{0}, connections_reset{0}, hostile_peers{0},
      oob_discarded{0}, sleeps{0}, wakeups{0};
};
inline void count(std::atomic<std::uint64_t>& counter) {
  counter.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
}

}  // namespace clan::engine
