#include "state/count_for_test.h"

#include <atomic>
#include <cstdint>

#include "os/test_settings.h"

namespace clan::preload {

void count_for_test(Socket& s) {
  auto* const sums = test_settings.sums;
  if (sums == nullptr || !s.pipe) return;
  // relaxed: sums, for people to read
  for (int k = 0; k < 2; ++k) {
    auto& end = s.pipe.page().ends[k];
    const std::uint64_t bytes = end.sender.bytes.load(std::memory_order_relaxed);
    const std::uint64_t before = end.sender.counted.exchange(bytes, std::memory_order_relaxed);
    if (bytes <= before) continue;
    if (before == 0) sums[0].fetch_add(1, std::memory_order_relaxed);
    sums[1 + k].fetch_add(bytes - before, std::memory_order_relaxed);
  }
}

}  // namespace clan::preload
