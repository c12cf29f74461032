// Wakes the threads that sleep at the other end of a pipe.
#pragma once

#include <atomic>
#include <cstdint>

#include "state/socket.h"

namespace clan::preload {

/// Rings the peer's bell (state/socket_migration.h), which is harmless if nobody sleeps. False: the
/// descriptor is gone.
bool ring_bell(Socket& s);
/// Rings even if the peer has closed.
bool write_bell(Socket& s);

/// Lives while a call publishes bytes or frees room in the pipe, and may owe the peer a ring. If
/// several processes hold this end, the kernel reports nothing when one is killed before it rings:
/// the next call rings instead. If it holds the end alone, its death ends the connection, which
/// wakes everybody.
class OwedRing {
 public:
  enum Direction { kSends, kReceives };
  OwedRing(Socket& s, Direction direction) {
    if (!s.inherited.load(std::memory_order_relaxed)) [[likely]]  // relaxed: of this process
      return;
    word_ = &s.open_file().owes_ring[direction];
    // order: before what the call publishes
    of_another_ = word_->exchange(1, std::memory_order_seq_cst) != 0;
  }
  ~OwedRing() {
    // order: it has rung
    if (word_ != nullptr) word_->store(0, std::memory_order_release);
  }
  OwedRing(const OwedRing&) = delete;
  OwedRing& operator=(const OwedRing&) = delete;
  /// Whether an earlier call has not rung.
  bool of_another() const { return of_another_; }

 private:
  std::atomic<std::uint32_t>* word_ = nullptr;
  bool of_another_ = false;
};

}  // namespace clan::preload
