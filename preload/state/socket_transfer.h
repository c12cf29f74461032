// A Socket's bytes in its pipe, and the threads that wait for them.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "clan/face/wait.h"
#include "state/latch.h"

namespace clan::preload {

struct Transfer {
  std::optional<Waiter> receive_wait, send_wait;
  std::atomic<bool> drained{false};  ///< all TCP bytes from before the switch are read
  Latch kernel_end;                  ///< the peer's side of TCP is closed
  /// TCP_INFO counts the peer's FIN among the bytes received
  Latch fin_counted;
  Latch kernel_error;
  /// the library has taken it from the kernel, which will not report it to the application
  Latch error_taken;
  std::atomic<int> error{0};  ///< if it says more than that the peer is gone
  Latch sent_to_nobody;       ///< the application has written to a peer that is gone
  Latch reset_told;
  std::atomic<bool> shut_read{false};
  std::atomic<int> low_water{1};                         ///< SO_RCVLOWAT
  std::atomic<std::uint64_t> checked_ns{0}, glanced{0};  ///< see stream/ending.h
  std::atomic<bool> rang{false};                         ///< the peer slept at the last send
  /// sends that found no room, for edge-triggered EPOLLOUT
  std::atomic<std::uint32_t> full{0};
  /// calls that gave up, for edge-triggered EPOLLIN: stream/going_back.h
  std::atomic<std::uint32_t> going_back{0};
  /// For ring_memory.cc: whether memory is to be released, the last time, and failures since then.
  std::atomic<bool> owes_memory{false};
  std::atomic<std::uint64_t> released_ns{0};
  std::atomic<int> release_looks{0};
  /// A counter of TCP_INFO; it never falls.
  struct Counter {
    std::atomic<std::uint64_t> told{0}, changed_ns{0};
  } told_sent, told_acked, told_received;

  void reset();
  // PAIR preload.drained: TCP is read
  bool has_drained() const { return drained.load(std::memory_order_acquire); }
};

}  // namespace clan::preload
