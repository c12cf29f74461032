// How an end counts the doorbells that it rings (socket_face::kDoorbells): by that number its other
// end tells them from the application's bytes.
//
// A thread counts a doorbell before it sends it, and takes that back if it could not. Each may be
// stopped at any instruction, and go on when another one has taken the connection back to TCP: from
// then on the count is closed, and what it does to it has no effect.
//
// Templates over the word, so that tests/preload/state/doorbell_count_test.cc runs these very lines
// under every interleaving of a machine with store buffers.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "clan/socket_face.h"

namespace clan::preload {

/// Before it is sent. False: none is to be sent any more.
template <typename Word>
bool count_doorbell(Word& word) {
  std::uint64_t now = word.load(std::memory_order_relaxed);  // relaxed: the exchange decides
  while ((now & socket_face::kDoorbellsClosed) == 0) {
    // order: counted before the byte is sent, so that its receiver finds it counted
    if (word.compare_exchange_weak(now, now + 1, std::memory_order_seq_cst,
                                   std::memory_order_relaxed))
      return true;
  }
  return false;
}

/// It has been counted, and not sent.
template <typename Word>
void uncount_doorbell(Word& word) {
  std::uint64_t now = word.load(std::memory_order_relaxed);  // relaxed: the exchange decides
  while ((now & socket_face::kDoorbellsClosed) == 0 &&
         // order: as it was counted
         !word.compare_exchange_weak(now, now - 1, std::memory_order_seq_cst,
                                     std::memory_order_relaxed)) {
  }
}

/// Nobody sends one any more, and no more than `sent` have been.
template <typename Word>
void close_doorbells(Word& word, std::uint64_t sent) {
  using socket_face::kDoorbellsClosed;
  std::uint64_t now = word.load(std::memory_order_relaxed);  // relaxed: the exchange decides
  // order: as they were counted
  while (!word.compare_exchange_weak(now,
                                     kDoorbellsClosed | std::min(now & ~kDoorbellsClosed, sent),
                                     std::memory_order_seq_cst, std::memory_order_relaxed)) {
  }
}

}  // namespace clan::preload
