// A Socket's way back to TCP.
#pragma once

#include <atomic>
#include <cstdint>

#include "state/latch.h"

namespace clan::preload {

struct Demotion {
  std::atomic<bool> back_in{false};  ///< this end reads TCP again
  /// it has left its pipe, and the application may connect it anew
  Latch anew;
  /// this end sends again what the peer did not read; nothing may overtake that
  std::atomic<bool> resending{false};
  /// when this end first tried to answer a peer that leaves; 0: not yet
  std::atomic<std::uint64_t> answer_wanted_ns{0};

  void reset();
  // PAIR preload.back_in: SO_RCVLOWAT is set
  bool reads_kernel() const { return back_in.load(std::memory_order_acquire); }
  // PAIR preload.resending: all is sent
  bool is_resending() const { return resending.load(std::memory_order_acquire); }
};

}  // namespace clan::preload
