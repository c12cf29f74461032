// Of a Socket: its way back to TCP.
#pragma once

#include <atomic>

namespace clan::preload {

struct Demotion {
  std::atomic<bool> back_in{false};    ///< what we read is TCP's again
  std::atomic<bool> anew{false};       ///< out of its pipe, and the application may connect it to another end
  std::atomic<bool> resending{false};  ///< what the other end gave back is on its way; nothing may overtake it

  void reset();
  bool reads_kernel() const { return back_in.load(std::memory_order_acquire); }  // PAIR preload.back_in: SO_RCVLOWAT is set
  bool is_resending() const { return resending.load(std::memory_order_acquire); }  // PAIR preload.resending: all is sent
};

}  // namespace clan::preload
