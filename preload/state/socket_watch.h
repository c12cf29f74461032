// The epoll sets that a Socket is in.
#pragma once

#include <atomic>
#include <cstdint>

#include "os/spin_lock.h"

namespace clan::preload {

struct Interest;

struct Watch {
  Interest* interests = nullptr;     ///< in epoll sets; see for_interests()
  std::atomic<bool> in_sets{false};  ///< there are interests
  mutable SpinLock listing;          ///< of `interests` and of that; no lock is taken under it
  std::atomic<bool> polled{false};   ///< by poll() or select(), once at least
  /// Calls that found nothing, or no room, before it was in a set or polled.
  std::atomic<std::uint32_t> unwatched_calls{0};

  void reset();
  /// order: after the store of what sets are to see. A set notifies its Interest or finds it (see
  /// control_add()).
  bool is_watched() const { return in_sets.load(std::memory_order_seq_cst); }
};

}  // namespace clan::preload
