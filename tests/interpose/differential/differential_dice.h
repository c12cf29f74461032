// The differential test's random numbers: the same for the same seed, wherever it is compiled.
#pragma once

#include <algorithm>
#include <cstdint>

namespace clan::interpose_test {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_((seed + 1) * 0xda942042e4dd58b5) {}
  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }
  int below(int n) { return static_cast<int>(next() % static_cast<std::uint64_t>(n)); }
  bool one_in(int n) { return below(n) == 0; }
  /// Small sizes are as frequent as big ones.
  std::int64_t size(std::int64_t most) {
    int bits = 0;
    while ((most >> bits) > 1) ++bits;
    const std::int64_t top = std::int64_t{1} << below(bits + 1);
    return std::min<std::int64_t>(
        most, top + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(top)));
  }

 private:
  std::uint64_t state_;
};

}  // namespace clan::interpose_test
