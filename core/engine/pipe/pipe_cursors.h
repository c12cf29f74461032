// What a PipeRing (engine/pipe/pipe_ring.h) plans with: how far the writer is, and where a record
// goes.
#pragma once

#include <cstdint>

namespace clan {

constexpr std::uint8_t kRingJump = 0xfe;  ///< go on at the line that stands in the head's length

/// Written by the sender only.
struct PipeProducer {
  std::uint64_t tail = 0;      ///< next line to write
  std::uint64_t bound = 0;     ///< index up to which records go one behind the other, see goes_on()
  std::uint64_t consumed = 0;  ///< what the reader had published when last looked at
  /// index at which to look whether the reader keeps up; 0: the first such
  std::uint64_t look_at = 0;
  std::uint64_t skip_at = 0;   ///< position of the last skip, 0: none yet
  std::uint64_t jump_at = 0;   ///< of the last jump
  std::uint64_t jump_gap = 0;  ///< lines it leads over, its own among them
  /// not stored: since the last look the reader has slept, or has answered
  bool calm = true;
};

/// Where a record goes: the lines to write, found by PipeRing::reserve().
struct PipeSlot {
  std::uint64_t from = 0;      ///< the tail before it: where a hop goes, if any
  std::uint64_t position = 0;  ///< of the record; `from` unless it hops
  std::uint64_t lines = 0;
  std::uint8_t hop = 0;  ///< 0, shm::kRingSkip or kRingJump
};

}  // namespace clan
