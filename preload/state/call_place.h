// A thread's place in the slot of its open file: the words by which it makes a call of the kernel
// that another thread can take from it, though each of the two may be stopped at any instruction.
// There are two such calls: one reads bytes of TCP under a lock (Reader, stream/draining.h), one
// sends a doorbell while the gate of its end is open (Ringer, stream/bell_call.h). A thread that
// takes the lock, or closes the gate, takes the call from all others.
//
// Templates over the word and the fence, so that tests/preload/state/call_place_test.cc and
// doorbell_count_test.cc run these very lines under every interleaving of a machine with store
// buffers.
#pragma once

#include <atomic>
#include <cstdint>

namespace clan::preload {

constexpr std::uint64_t kInCall = 1u << 23;  ///< of the owner of a place

/// Of a thread that reads. The last two words are its iovec.
struct Reader {
  /// 0: free | thread | kInCall | pid namespace << 32
  std::atomic<std::uint64_t> owner{0};
  std::atomic<std::uint64_t> base{0};  ///< what is read goes nowhere
  std::atomic<std::uint64_t> length{0};
};

/// Of a thread that rings. The last two words are control data of its message, which mean nothing:
/// with a length of 0 the kernel refuses the call. An iovec would let a process of the same end,
/// perhaps another user's, choose what memory of this one is sent.
struct Ringer {
  std::atomic<std::uint64_t> owner{0};  ///< as Reader::owner
  std::atomic<std::uint64_t> length{0};
  std::atomic<std::uint64_t> kind{0};
};

/// Of the control data in it.
constexpr std::uint64_t kControlBytes = 16;

/// The calling thread, as the owner of a place.
std::uint64_t owner_word();

enum class Condition { kRuns, kIsStopped, kHasDied };
/// Of the owner of a place, by /proc. When in doubt, it runs.
Condition condition_of(std::uint64_t owner);

/// Of its own place; the caller looks next at the lock, or at the gate.
template <typename Fence, typename Word>
void begin_call(Word& owner, Word& length, std::uint64_t me, std::uint64_t n) {
  // relaxed: before the fence
  owner.store(me | kInCall, std::memory_order_relaxed);
  length.store(n, std::memory_order_relaxed);  // relaxed: likewise
  Fence::even();  // PAIR preload.call_place: Dekker with a thread that takes calls from others
}

/// It has made the call, and has counted what that did. `word`: 0, or itself.
template <typename Word>
void end_call(Word& owner, Word& length, std::uint64_t word) {
  length.store(0, std::memory_order_relaxed);  // relaxed: of this thread
  // PAIR preload.call_place: it is in no call any more, and has counted
  owner.store(word, std::memory_order_release);
}

/// By a thread that has just taken the lock, or closed the gate, before it looks at the places of
/// others.
template <typename Fence>
void begin_looking() {
  Fence::even();  // PAIR preload.call_place: Dekker with a thread that is about to make its call
}

/// The owner of a place, if it is in its call, or has not counted yet what that did. From now on
/// the kernel does nothing for it, unless it is in the middle of that: which the caller asks next,
/// see condition_of(). 0: it is in none.
template <typename Word>
std::uint64_t take_call(Word& owner, Word& length) {
  // PAIR preload.call_place: sees that it has counted, if it is in none
  const std::uint64_t now = owner.load(std::memory_order_acquire);
  if ((now & kInCall) == 0) return 0;
  length.store(0, std::memory_order_relaxed);  // relaxed: before that question, a system call
  return now;
}

}  // namespace clan::preload
