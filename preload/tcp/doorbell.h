// Doorbells: single bytes of TCP that make the descriptor readable for the threads that sleep on
// it.
//
// An end that goes back to TCP first silences them: from then on what it sends by TCP is the
// application's.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "clan/face/socket_face.h"
#include "state/face.h"
#include "state/socket.h"
#include "tcp/call_gate.h"

namespace clan::preload {

/// The thread that may send a doorbell of this end. `fd`: the end's.
class Ringing {
 public:
  Ringing(int fd, PipePage::Face& face, OpenFileState& slot);
  /// False: this end sends by TCP, or is about to.
  explicit operator bool() const { return allowed_; }

 private:
  const ClosedGate gate_;
  bool allowed_;
};

/// The doorbell's byte. Answers as send(), without waiting.
ssize_t send_doorbell(int fd);

/// Sends a doorbell that the other end finds counted. Answers as send(), with EAGAIN where this end
/// may send none.
ssize_t send_counted_doorbell(int fd, Socket& s);

/// Sees to it that no thread of the end sends a doorbell from now on: what the end sends by TCP
/// then is the application's. `fd`, `slot`: the end's.
void silence(int fd, PipePage::Face& face, OpenFileState& slot);
inline void silence(int fd, Socket& s) { silence(fd, s.mine(), s.open_file()); }

/// Reads the doorbells that have been rung, and nothing else. False: some are still on their way.
/// `limit`: at most so many of them, counted from the first ever.
bool drain_doorbells(int fd, Socket& s, std::uint64_t limit = ~std::uint64_t{0});

/// There are some, or will be in a moment. Does not ask the kernel.
inline bool doorbells_waiting(const Socket& s) {
  return s.mine().words[socket_face::kDoorbellsRead].load(std::memory_order_relaxed) <
         doorbells_of(s.theirs(), std::memory_order_relaxed);
}

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
