// The words by which threads that read bytes of TCP agree on who reads, though each of them may be
// stopped at any instruction (stream/draining.h says how). Those that send a doorbell do so in the
// same way: what they look at is no lock, but the gate of their end (stream/bell_call.h).
//
// Templates over the word and the fence, so that tests/preload/state/reader_test.cc runs
// these very lines under every interleaving of a machine with store buffers.
#pragma once

#include <atomic>
#include <cstdint>

namespace clan::preload {

/// Of a thread. The last two words are the iovec by which it reads.
struct Reader {
  static constexpr std::uint64_t kReads = 1u << 23;  ///< of `owner`
  /// 0: free | thread | kReads | pid namespace << 32
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

/// Before its call; whoever calls this looks at its lock next.
template <typename Fence, typename Word>
void begin_reading(Word& owner, Word& length, std::uint64_t me, std::uint64_t n) {
  // relaxed: before the fence
  owner.store(me | Reader::kReads, std::memory_order_relaxed);
  length.store(n, std::memory_order_relaxed);  // relaxed: likewise
  Fence::even();  // PAIR preload.reader: Dekker with a thread that takes the lock
}

/// It has read, and has counted that. `word`: 0, or itself.
template <typename Word>
void end_reading(Word& owner, Word& length, std::uint64_t word) {
  length.store(0, std::memory_order_relaxed);  // relaxed: of this thread
  // PAIR preload.reader: it reads no more, and has counted
  owner.store(word, std::memory_order_release);
}

/// By a thread that has just taken the lock, before it looks at other readers.
template <typename Fence>
void begin_looking() {
  Fence::even();  // PAIR preload.reader: Dekker with a thread that is about to read
}

/// Its owner, if it reads, or has read and not counted; from now on it reads nothing, unless it is
/// in the middle of its call: that the caller asks the kernel next. 0: it does not.
template <typename Word>
std::uint64_t stop_reading(Word& owner, Word& length) {
  // PAIR preload.reader: sees that it has counted, if it does not read
  const std::uint64_t reads = owner.load(std::memory_order_acquire);
  if ((reads & Reader::kReads) == 0) return 0;
  length.store(0, std::memory_order_relaxed);  // relaxed: before that question, a system call
  return reads;
}

}  // namespace clan::preload
