// A Socket's way back to TCP.
#pragma once

#include <atomic>
#include <cstdint>

#include "state/latch.h"

namespace clan::preload {

struct Demotion {
  std::atomic<bool> back_in{false};  ///< what we read is TCP's again
  /// out of its pipe, and the application may connect it to another end
  Latch anew;
  /// what the other end gave back is on its way; nothing may overtake it
  std::atomic<bool> resending{false};
  /// When this end first checked whether it can answer the other one, which goes back to TCP; 0: it
  /// need not yet.
  std::atomic<std::uint64_t> answer_wanted_ns{0};

  void reset();
  // PAIR preload.back_in: SO_RCVLOWAT is set
  bool reads_kernel() const { return back_in.load(std::memory_order_acquire); }
  // PAIR preload.resending: all is sent
  bool is_resending() const { return resending.load(std::memory_order_acquire); }
};

}  // namespace clan::preload
