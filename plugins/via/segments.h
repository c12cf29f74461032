// The segments of a descriptor, and a walk along the bytes of its data segments.
#pragma once

#include <vipl.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "provider.h"

namespace clan::via {

/// The i-th: they lie behind the control segment, more of them than DS has.
inline VIP_DESCRIPTOR_SEGMENT& segment_of(const VIP_DESCRIPTOR& descriptor, std::uint32_t i) {
  auto* const bytes = reinterpret_cast<std::byte*>(const_cast<VIP_DESCRIPTOR*>(&descriptor));
  return *reinterpret_cast<VIP_DESCRIPTOR_SEGMENT*>(bytes + sizeof(VIP_CONTROL_SEGMENT) +
                                                    i * sizeof(VIP_DESCRIPTOR_SEGMENT));
}

inline bool covers(const Region& region, const void* address, std::uint64_t bytes) {
  // before the base: a large number
  const std::uint64_t at =
      reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(region.base);
  return at <= region.length && bytes <= region.length - at;
}
inline bool covers(const Region& region, const VIP_DATA_SEGMENT& segment) {
  return covers(region, segment.Data.Address, segment.Length);
}

/// Where the next bytes of a descriptor are.
class SegmentWalk {
 public:
  SegmentWalk(const VIP_DESCRIPTOR& descriptor, std::uint32_t first)
      : descriptor_(descriptor), next_(first) {}

  /// At most so many, of one segment; none: it is at its end.
  std::span<std::byte> next(std::uint64_t most) {
    while (next_ < std::min<std::uint32_t>(descriptor_.CS.SegCount, kMostSegments)) {
      const VIP_DATA_SEGMENT& segment = segment_of(descriptor_, next_).Local;
      if (offset_ < segment.Length) {
        const std::uint64_t n = std::min<std::uint64_t>(most, segment.Length - offset_);
        auto* const at = static_cast<std::byte*>(segment.Data.Address) + offset_;
        offset_ += n;
        return {at, n};
      }
      ++next_;
      offset_ = 0;
    }
    return {};
  }
  void gather(std::byte* to, std::uint64_t bytes) {
    for (; bytes > 0;) {
      const auto part = next(bytes);
      if (part.empty()) return;
      std::memcpy(to, part.data(), part.size());
      to += part.size();
      bytes -= part.size();
    }
  }
  void scatter(const std::byte* from, std::uint64_t bytes) {
    for (; bytes > 0;) {
      const auto part = next(bytes);
      if (part.empty()) return;
      std::memcpy(part.data(), from, part.size());
      from += part.size();
      bytes -= part.size();
    }
  }

 private:
  const VIP_DESCRIPTOR& descriptor_;
  std::uint32_t next_;
  std::uint64_t offset_ = 0;
};

}  // namespace clan::via
