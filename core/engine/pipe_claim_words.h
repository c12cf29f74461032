// The words by which threads that send in one end agree on whose record comes next, though each of
// them may be stopped at any instruction (engine/pipe_send_shared.cc says how).
//
//   one that plans                        one that takes the lock from it
//     the words of its claim                lock = mine
//     owner, marked                         fence
//     fence                                 claims of others: marked? past their lines
//     lock still mine? else it gives up     ...
//
// Either the one that plans sees that its lock has been taken, or the other one sees the claim.
//
// Templates over the word and the fence, so that tests/engine/pipe_claim_words_model_test.cc runs
// these very lines under every interleaving of a machine with store buffers.
#pragma once

#include <atomic>
#include <cstdint>

namespace clan::pipes {

constexpr std::uint64_t kPlanned = 1u << 24;  ///< of a claim's owner
/// Likewise, of every other plan of a call. An owner that has lost the lock may write one plan more
/// before it looks: the lock's owner sees by this that what it reads is of two.
constexpr std::uint64_t kTurn = 1u << 27;

/// Behind the words of the claim; the caller looks at its lock next.
template <typename Fence, typename Word>
void mark_claim(Word& owner, std::uint64_t marked) {
  // PAIR pipe.claim: publishes it to read_marked()
  owner.store(marked, std::memory_order_release);
  Fence::even();  // PAIR pipe.claim: Dekker with a thread that takes the lock
}

/// The owner writes to its lines no more. `word`: 0, or itself.
template <typename Word>
void unmark_claim(Word& owner, std::uint64_t word) {
  // PAIR pipe.claim: it writes there no more
  owner.store(word, std::memory_order_release);
}

/// What `read()` reads of a claim belongs together, and is to be believed. Else 0; if so the
/// owner's word.
template <typename Word, typename Read>
std::uint64_t read_marked(const Word& owner, const Read& read) {
  // PAIR pipe.claim: sees what has been planned
  const std::uint64_t before = owner.load(std::memory_order_acquire);
  if ((before & kPlanned) == 0) return 0;
  read();
  // order: what was read, then the owner, as with a sequence count
  std::atomic_thread_fence(std::memory_order_acquire);
  // relaxed: behind the fence
  return owner.load(std::memory_order_relaxed) == before ? before : 0;
}

/// The line at the tail becomes `head`, unless another one has published there.
template <typename Word>
bool publish_first(Word& line, std::uint64_t head) {
  std::uint64_t none = 0;
  // PAIR ring.head: publishes the payload, the terminator and the record behind a hop to peek()
  return line.compare_exchange_strong(none, head, std::memory_order_release,
                                      std::memory_order_relaxed);
}

/// A thread that comes late with less leaves what there is.
template <typename Word>
void raise(Word& word, std::uint64_t to) {
  std::uint64_t now = word.load(std::memory_order_relaxed);  // relaxed: the exchange decides
  // PAIR pipe.lock: the tail is the last of the cursors
  while (now < to && !word.compare_exchange_weak(now, to, std::memory_order_release,
                                                 std::memory_order_relaxed)) {
  }
}

}  // namespace clan::pipes
