// A measurement in slices: those in which other work took the processor are set aside. Header only,
// for load programs that link nothing else of clan-bench.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "support/cpu_time.h"

namespace clan::bench {

/// How often threads of this process have lost their processor so far. Read by the thread that
/// measures: one that sleeps in a slice may hide a loss of another one.
struct Turns {
  long lost = 0;    ///< times the measuring thread was taken off its processor
  long others = 0;  ///< turns that other threads have ended, such as the one that drives CLAN

  static Turns now() {
    rusage all{}, mine{}, again{};
    do {  // a turn of this thread that ends between two calls would be another's
      (void)getrusage(RUSAGE_THREAD, &mine);
      (void)getrusage(RUSAGE_SELF, &all);
      (void)getrusage(RUSAGE_THREAD, &again);
    } while (turns_of(mine) != turns_of(again));
    return {mine.ru_nivcsw, turns_of(all) - turns_of(mine)};
  }
  static long turns_of(const rusage& of) { return of.ru_nvcsw + of.ru_nivcsw; }
};

/// What took the processor from the thread that measures in a slice.
enum class Lost {
  kNever,
  kToOwn,     ///< to other threads of its process only: what the measured software costs
  kToOthers,  ///< to another process too
};

/// The kernel counts losses, not what caused them. A turn of another thread of the process takes
/// the processor from the measuring thread once at most: more losses than turns are not explained
/// by them. Where such a thread runs elsewhere a disturbed slice may be kept, which makes no figure
/// better.
inline Lost lost_between(const Turns& before, const Turns& after) {
  const long lost = after.lost - before.lost;
  return lost == 0                              ? Lost::kNever
         : lost <= after.others - before.others ? Lost::kToOwn
                                                : Lost::kToOthers;
}

/// What a slice has cost one process, or several.
struct Spent {
  Lost lost = Lost::kNever;
  double cpu_us = 0;  ///< user and system, of all threads

  Spent& operator+=(const Spent& other) {
    lost = std::max(lost, other.lost);
    cpu_us += other.cpu_us;
    return *this;
  }
};

/// A slice from here on, in the thread that measures.
class Slice {
 public:
  Spent spent() const { return {lost_between(turns_, Turns::now()), (cpu_ns() - cpu_) / 1000}; }

 private:
  Turns turns_ = Turns::now();
  double cpu_ = cpu_ns();
};

/// The figure of the slices that other work did not disturb, as far as there are such.
struct Figure {
  double minimum = 0;
  double median = 0;
  int kept = 1;     ///< slices. None: all were disturbed, and the figure is of those
  int dropped = 0;  ///< slices in which another process had the processor
  int shared = 0;   ///< of those kept: in which another thread of the process had it
  double cpu = 0;   ///< us of CPU time for an operation, the median
};

/// As the scripts read it: MINIMUM MEDIAN KEPT DROPPED SHARED CPU.
inline void print(const Figure& figure) {
  std::printf("%.5f %.5f %d %d %d %.5f\n", figure.minimum, figure.median, figure.kept,
              figure.dropped, figure.shared, figure.cpu);
  std::fflush(stdout);
}

class Slices {
 public:
  /// `operations`: of all processes that the CPU time is of.
  void add(double value, const Spent& spent, double operations) {
    Kept& to = spent.lost == Lost::kToOthers ? disturbed_ : calm_;
    to.values.push_back(value);
    to.cpu.push_back(spent.cpu_us / operations);
    if (spent.lost == Lost::kToOwn) ++shared_;
  }
  std::size_t calm() const { return calm_.values.size(); }
  std::size_t all() const { return calm() + disturbed_.values.size(); }
  /// At least one slice has been added.
  Figure figure() {
    auto& [kept, cpu] = calm() == 0 ? disturbed_ : calm_;
    std::sort(kept.begin(), kept.end());
    std::sort(cpu.begin(), cpu.end());
    return {kept.front(),
            kept[kept.size() / 2],
            static_cast<int>(calm()),
            static_cast<int>(all() - calm()),
            shared_,
            cpu[cpu.size() / 2]};
  }

 private:
  struct Kept {
    std::vector<double> values, cpu;
  };
  Kept calm_, disturbed_;
  int shared_ = 0;
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
