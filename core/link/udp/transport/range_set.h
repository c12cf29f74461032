// RangeSet: a set of 64-bit numbers as sorted, disjoint, not adjacent ranges [begin, end).
//
// For packet numbers, and positions of a channel: one to three ranges; with loss, one for each gap.
// Memory stays at its peak: no allocation in the steady state. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace clan::udp {

struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  friend bool operator==(const Range&, const Range&) = default;
};

class RangeSet {
 public:
  bool empty() const { return ranges_.empty(); }
  std::size_t size() const { return ranges_.size(); }
  const Range& operator[](std::size_t i) const { return ranges_[i]; }
  const Range& front() const { return ranges_.front(); }
  const Range& back() const { return ranges_.back(); }
  void clear() { ranges_.clear(); }
  /// Frees the memory of an empty set.
  void release_memory() {
    if (ranges_.empty()) std::vector<Range>().swap(ranges_);
  }

  void add(std::uint64_t begin, std::uint64_t end) {
    if (begin >= end) return;
    if (ranges_.empty() || begin > ranges_.back().end) {  // beyond all: the common case
      ranges_.push_back({begin, end});
      return;
    }
    auto from = first_ending_at_or_after(begin);
    auto to = from;
    while (to != ranges_.end() && to->begin <= end) {
      begin = std::min(begin, to->begin);
      end = std::max(end, to->end);
      ++to;
    }
    if (from == to) {
      ranges_.insert(from, {begin, end});
      return;
    }
    *from = {begin, end};
    ranges_.erase(from + 1, to);
  }

  void remove(std::uint64_t begin, std::uint64_t end) {
    if (begin >= end) return;
    auto at = first_ending_at_or_after(begin);
    while (at != ranges_.end() && at->begin < end) {
      const Range old = *at;
      if (old.end <= begin) {
        ++at;
      } else if (old.begin < begin && old.end > end) {
        at->end = begin;
        ranges_.insert(at + 1, {end, old.end});
        return;
      } else if (old.begin < begin) {
        at->end = begin;
        ++at;
      } else if (old.end > end) {
        at->begin = end;
        return;
      } else {
        at = ranges_.erase(at);
      }
    }
  }

  /// Forgets everything below `limit`.
  void remove_below(std::uint64_t limit) { remove(0, limit); }

  bool contains(std::uint64_t number) const {
    auto at = std::upper_bound(ranges_.begin(), ranges_.end(), number,
                               [](std::uint64_t n, const Range& r) { return n < r.end; });
    return at != ranges_.end() && at->begin <= number;
  }

  /// Calls f(begin, end) for each missing part of [begin, end), upwards. f must not change the set.
  template <typename F>
  void for_each_missing(std::uint64_t begin, std::uint64_t end, F&& f) const {
    auto at = std::upper_bound(ranges_.begin(), ranges_.end(), begin,
                               [](std::uint64_t n, const Range& r) { return n < r.end; });
    for (; begin < end && at != ranges_.end() && at->begin < end; ++at) {
      if (at->begin > begin) f(begin, at->begin);
      begin = std::max(begin, at->end);
    }
    if (begin < end) f(begin, end);
  }

 private:
  std::vector<Range>::iterator first_ending_at_or_after(std::uint64_t begin) {
    return std::lower_bound(ranges_.begin(), ranges_.end(), begin,
                            [](const Range& r, std::uint64_t n) { return r.end < n; });
  }
  std::vector<Range> ranges_;
};

}  // namespace clan::udp
