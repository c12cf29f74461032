// Rings: how a call wakes the threads that sleep at the other end of a pipe.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "state/socket.h"

namespace clan::preload {

/// Rings the other end's bell (state/socket_migration.h). A ring that nobody sleeps for does no
/// harm. False: the descriptor is gone.
bool ring_bell(Socket& s);
/// Does so whatever has become of the other end.
bool write_bell(Socket& s);

/// A call that publishes something in the pipe, or gives room back, while it lives: it may owe the
/// other end a ring. Where several processes hold this end, the kernel tells nobody when one of
/// them is killed before it has rung: the next call rings in its place. A process that holds its
/// end alone ends the connection when it dies, and that wakes everybody.
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
  /// A call before this one has not rung.
  bool of_another() const { return of_another_; }

 private:
  std::atomic<std::uint32_t>* word_ = nullptr;
  bool of_another_ = false;
};

}  // namespace clan::preload
