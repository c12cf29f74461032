// Two sides that must not miss each other: each changes its own word, then checks the other's. The
// change that is first in the order all threads agree on is seen by the other side's check. A
// thread about to sleep says so, then checks for work; one with work stores it, then checks.
//
//   about to sleep                            has news
//     announce(sleeping, 1)                     add(news, 1)
//     load(news): none? sleep                   load(sleeping): wake it
//
// All of this is sequentially consistent, and publishes as <clan/detail/words.h> does. Protocols
// with more steps name their orders and tags themselves (nic/wakeup.h).
//
// tests/unit/base/dekker_test.cc hands plain data over by each of these, dekker_model_test.cc runs
// the picture in every interleaving, tests/model/orders weakens the orders one at a time.
// docs/shared-memory.md has the rules.
#pragma once

#include <clan/detail/words.h>

#include <atomic>

namespace clan::dekker {

using words::value_of;

struct FullFence {
  static void even() {
    // PAIR dekker: both
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
};

/// Between what this side has changed by other means and its check of the other's word.
template <typename Fence = FullFence>
void settle() {
  Fence::even();
}

template <typename Word>
void announce(Word&& word, value_of<Word> value) {
  // PAIR dekker: before this side reads the other's word; and publishes what came before
  word.store(value, std::memory_order_seq_cst);
}

template <typename Word>
auto load(const Word& word) {
  // PAIR dekker: behind what this side has announced; and sees what came before
  return word.load(std::memory_order_seq_cst);
}

// A change that depends on what the word was.
using words::add;
using words::cas;
using words::clear_bits;
using words::set_bits;
using words::subtract;
using words::swap;

}  // namespace clan::dekker
