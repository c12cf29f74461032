// How much of the processors other work than this process and the children it has waited for had in
// the meantime: beside it no figure is what it would be alone.
#pragma once

#include <cstdint>
#include <string>

namespace clan::bench {

/// More of it than this, in processors, disturbs what is measured.
inline constexpr double kOtherWork = 0.2;

/// Seconds since the machine has started that its processors were at work, or taken from it by the
/// host, by the first line of /proc/stat. 0: it is no such line.
double busy_seconds(const std::string& line);

class OtherWork {
 public:
  OtherWork();
  /// In processors, since this was made.
  double processors() const;

 private:
  double busy_, own_;
  std::uint64_t began_ns_;
};

}  // namespace clan::bench
