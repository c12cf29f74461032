// The flags by which the two ends of a pipe say that they are about to sleep.
//
//   sleeps (for data, for room)            the other end
//     waiting = thread                       publishes data (room)
//     fence                                  fence
//     data (room) there? do not sleep        waiting? take it, and ring
//
// Either the sleeper sees what has been published, or the other end sees the flag. A ring is for
// every thread that sleeps at that end.
//
// Templates over the word and the fence, so that a model
// (tests/model/engine/pipe/pipe_waiting_model_test.cc) runs these very lines under every
// interleaving of a machine with store buffers.
#pragma once

#include <atomic>
#include <cstdint>

namespace clan::pipes {

/// of `waiting`; no thread of a program has this id but init's
constexpr std::uint32_t kAnybody = 1;
constexpr std::uint32_t kWindowWanted = 2;  ///< of a sender's `waiting`: room in the window will do

/// The flag of what has set `now` and of what sets `mine`.
constexpr std::uint32_t both(std::uint32_t now, std::uint32_t mine) {
  return now == 0 || now == mine ? mine : kAnybody;
}

/// Adds `mine` to what is waited for; the thread must look once more before it sleeps. Of a reader
/// `mine` is the id of its thread, or kAnybody, so that a thread that has done with waiting does
/// not take back another's wish; of a writer kAnybody or kWindowWanted.
template <typename Fence, typename Word>
void announce(Word& waiting, std::uint32_t mine) {
  std::uint32_t now = waiting.load(std::memory_order_relaxed);  // relaxed: the exchange decides
  std::uint32_t next;
  // PAIR pipe.waiting: Dekker with take_waiting() and take_waiting_for_room(); a writer's publishes
  // its cursors
  while ((next = both(now, mine)) != now &&
         !waiting.compare_exchange_weak(now, next, std::memory_order_seq_cst,
                                        std::memory_order_relaxed)) {
  }
  Fence::even();
}

/// The reader has done with waiting.
template <typename Word>
void withdraw_reader(Word& waiting, std::uint32_t me) {
  std::uint32_t now =
      waiting.load(std::memory_order_relaxed);  // relaxed: nobody else writes our id
  if (me == kAnybody || now != me) return;
  // order: one total order with the other compare-and-swaps of the word (pipe.waiting)
  waiting.compare_exchange_strong(now, 0, std::memory_order_seq_cst, std::memory_order_relaxed);
}

/// After something has been published: does the other end sleep? Once per sleep.
template <typename Fence, typename Word>
bool take_waiting(Word& waiting) {
  Fence::even();
  // PAIR pipe.waiting: Dekker with announce()
  if (waiting.load(std::memory_order_relaxed) == 0) return false;
  return waiting.exchange(0, std::memory_order_seq_cst) != 0;
}

/// After lines have been given back: does the sender sleep until there are as many as there are
/// now? `enough(flag)`: not before we give back more.
template <typename Fence, typename Word, typename Enough>
bool take_waiting_for_room(Word& waiting, const Enough& enough) {
  Fence::even();
  // PAIR pipe.waiting: Dekker with announce(); sees the cursors of the sender that waits
  const std::uint32_t now = waiting.load(std::memory_order_acquire);
  if (now == 0 || !enough(now)) return false;
  // order: one total order with what else takes the flag
  return waiting.exchange(0, std::memory_order_seq_cst) != 0;
}

}  // namespace clan::pipes
