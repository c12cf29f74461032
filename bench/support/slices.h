// A measurement in slices: those in which other work took the processor are set aside. Header only,
// for load programs that link nothing else of clan-bench.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace clan::bench {

/// How often a thread of this process has lost its processor, to other work or to another thread of
/// the process, such as the one that drives CLAN: the kernel counts both alike.
inline long times_preempted() {
  rusage usage{};
  (void)getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

/// Of the slices that other work did not disturb, as far as there are such.
struct Figure {
  double minimum = 0;
  double median = 0;
  int kept = 1;     ///< slices. None: all were disturbed, and the figure is of those
  int dropped = 0;  ///< slices in which a thread of this process lost its processor
};

class Slices {
 public:
  void add(double value, bool disturbed) { (disturbed ? disturbed_ : calm_).push_back(value); }
  std::size_t calm() const { return calm_.size(); }
  std::size_t all() const { return calm_.size() + disturbed_.size(); }
  /// At least one slice has been added.
  Figure figure() {
    std::vector<double>& kept = calm_.empty() ? disturbed_ : calm_;
    std::sort(kept.begin(), kept.end());
    return {kept.front(), kept[kept.size() / 2], static_cast<int>(calm_.size()),
            static_cast<int>(disturbed_.size())};
  }

 private:
  std::vector<double> calm_, disturbed_;
};

// Messages carry their number at front, middle and back; blocks are compared byte by byte. An empty
// message carries nothing.
inline std::uint8_t number_mark(std::uint64_t number) {
  return static_cast<std::uint8_t>(number % 251 + 1);
}

inline void mark(std::uint8_t* message, std::size_t bytes, std::uint64_t number) {
  if (bytes > 0) message[0] = message[bytes / 2] = message[bytes - 1] = number_mark(number);
}

inline bool marked(const std::uint8_t* message, std::size_t bytes, std::uint64_t number) {
  const std::uint8_t m = number_mark(number);
  return bytes == 0 || (message[0] == m && message[bytes / 2] == m && message[bytes - 1] == m);
}

inline std::uint8_t fill_byte(std::size_t i, unsigned seed) {
  return static_cast<std::uint8_t>(i * 31 + (i >> 8) * 7 + seed);
}

inline void fill(std::uint8_t* to, std::size_t bytes, unsigned seed) {
  for (std::size_t i = 0; i < bytes; ++i) to[i] = fill_byte(i, seed);
}

inline bool filled(const std::uint8_t* in, std::size_t bytes, unsigned seed) {
  for (std::size_t i = 0; i < bytes; ++i) {
    if (in[i] != fill_byte(i, seed)) return false;
  }
  return true;
}

}  // namespace clan::bench
