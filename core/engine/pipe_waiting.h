// The flags by which the two ends of a pipe say that they are about to sleep, and which of them
// rings for them.
//
//   sleeps (for data, for room)            the other end
//     waiting = thread                       publishes data (room)
//     fence                                  fence
//     data (room) there? do not sleep        waiting? take it, and ring
//
// Either the sleeper sees what has been published, or the other end sees the flag. A ring is for
// every thread that sleeps at that end, and lasts until it has been heard (a byte of the TCP
// connection).
//
// Templates over the word and the fence, so that tests/engine/pipe_waiting_model_test.cc runs these
// very lines under every interleaving of a machine with store buffers.
#pragma once

#include <atomic>
#include <cstdint>

namespace clan::pipes {

/// of `waiting`; no thread of a program has this id but init's
constexpr std::uint32_t kAnybody = 1;
constexpr std::uint32_t kWindowWanted = 2;  ///< of a sender's `waiting`: room in the window will do

/// A reader is about to sleep; it must look at the ring once more. The flag holds the id of the one
/// thread that waits, or kAnybody when there is more than one, so that a thread that has done with
/// waiting does not take back another's wish.
template <typename Fence, typename Word>
void announce_reader(Word& waiting, std::uint32_t me) {
  std::uint32_t now = waiting.load(std::memory_order_relaxed);  // relaxed: the exchange decides
  // PAIR pipe.waiting: Dekker with take_waiting()
  while (now != me && now != kAnybody &&
         !waiting.compare_exchange_weak(now, now == 0 ? me : kAnybody, std::memory_order_seq_cst,
                                        std::memory_order_relaxed)) {
  }
  Fence::even();
}

/// The reader has done with waiting.
template <typename Word>
void withdraw_reader(Word& waiting, std::uint32_t me) {
  // relaxed: nobody else writes our id
  if (me == kAnybody || waiting.load(std::memory_order_relaxed) != me) return;
  // order: one total order with the other compare-and-swaps of the word (pipe.waiting)
  waiting.compare_exchange_strong(me, 0, std::memory_order_seq_cst, std::memory_order_relaxed);
}

/// A writer is about to sleep; it must look for room once more. `mine`: kAnybody, kWindowWanted.
template <typename Fence, typename Word>
void announce_writer(Word& waiting, std::uint32_t mine) {
  const std::uint32_t now = waiting.load(std::memory_order_relaxed);  // relaxed: a hint
  // PAIR pipe.waiting: Dekker with take_waiting_for_room(), by the fence; publishes the cursors
  if (now != mine && now != kAnybody)
    waiting.store(now == 0 ? mine : kAnybody, std::memory_order_release);
  Fence::even();
}

/// Somebody may sleep at any time: the flags stay set until the other end takes them.
template <typename Fence, typename Word>
void announce_anybody(Word& reader, Word* writer) {
  reader.store(kAnybody, std::memory_order_relaxed);  // relaxed: ordered by the fence
  // PAIR pipe.waiting: Dekker with take_waiting_for_room(), by the fence; publishes the cursors
  if (writer != nullptr) writer->store(kAnybody, std::memory_order_release);
  // PAIR pipe.waiting: Dekker with take_waiting()
  Fence::even();
}

/// After something has been published: does the other end sleep? Once per sleep.
template <typename Fence, typename Word>
bool take_waiting(Word& waiting) {
  Fence::even();
  // PAIR pipe.waiting: Dekker with announce_reader() and announce_anybody()
  return waiting.load(std::memory_order_relaxed) != 0 &&
         waiting.exchange(0, std::memory_order_seq_cst) != 0;
}

/// After lines have been given back: does the sender sleep until there are as many as there are
/// now? `enough(flag)`: not before we give back more.
template <typename Fence, typename Word, typename Enough>
bool take_waiting_for_room(Word& waiting, const Enough& enough) {
  Fence::even();
  // PAIR pipe.waiting: Dekker with announce_writer(); sees the cursors of the sender that waits
  const std::uint32_t now = waiting.load(std::memory_order_acquire);
  if (now == 0 || !enough(now)) return false;
  // order: one total order with what else takes the flag
  return waiting.exchange(0, std::memory_order_seq_cst) != 0;
}

}  // namespace clan::pipes
