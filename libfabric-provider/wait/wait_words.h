// What threads that are about to sleep, and those that fill their queues, tell each other: the part
// of wait.h that decides whether a wake-up can be lost, and nothing else.
//
//   sleeper, under the mutex                thread that fills its queue
//     counts itself, armed = true             puts the entry
//     checks the queue again                  armed? takes it, and fills the descriptor
//     sleeps on the descriptor                  that somebody sleeps on
//
// Each call that sleeps waits for something of its own, so one is woken by every change, though
// another has slept and woken in between. So the descriptor is emptied only while none of them
// sleeps: when one has found it full, a thread that comes has to wait until those that it has woken
// have left.
//
// Templates over the words and over what fills and empties the descriptors, so that
// tests/model/libfabric/wait/wait_words_model_test.cc runs these very lines under every
// interleaving of a machine with store buffers.
#pragma once

#include <atomic>

namespace clan::ofi {

struct WaitWords {
  std::atomic<bool> armed{false};
  std::atomic<int> sleepers{0};    ///< calls that sleep; more only under the mutex
  std::atomic<bool> full{false};   ///< one of them has seen their descriptor to be so
  std::atomic<bool> shown{false};  ///< there is a descriptor that programs sleep on
};

/// After a queue has been filled: `fill()` the descriptor of calls that sleep, `fill_shown()` that
/// of programs. Any thread.
template <typename Words>
bool may_sleep(const Words& words) {
  // PAIR ofi.wait.armed: the caller has filled a queue before
  return words.armed.load(std::memory_order_seq_cst);
}
template <typename Words, typename Fill, typename FillShown>
void wake_sleepers(Words& words, const Fill& fill, const FillShown& fill_shown) {
  // PAIR ofi.wait.armed: the thread that set it was counted among the sleepers before
  if (!words.armed.exchange(false, std::memory_order_seq_cst)) return;  // another wakes them
  if (words.sleepers.load(std::memory_order_seq_cst) > 0) fill();
  // PAIR ofi.wait.shown: sees the descriptor
  if (words.shown.load(std::memory_order_acquire)) fill_shown();
}

/// There is a descriptor that programs sleep on.
template <typename Words>
void publish_shown(Words& words) {
  words.shown.store(true, std::memory_order_release);  // PAIR ofi.wait.shown: publishes it
}

/// A program asks whether it may sleep on what it has been shown. Then it checks the queues.
template <typename Words, typename Empty>
void arm_shown(Words& words, const Empty& empty_shown) {
  if (words.shown.load(std::memory_order_relaxed)) empty_shown();  // relaxed: under the mutex
  // PAIR ofi.wait.armed: the checks of the queues come after
  words.armed.store(true, std::memory_order_seq_cst);
}

/// A call is about to sleep, and checks the queues once more. Under the mutex. False: those that
/// the last change has woken are about to leave.
template <typename Words, typename Empty>
bool join_sleepers(Words& words, const Empty& empty) {
  // PAIR ofi.wait.sleepers: sees that one of them has found it full
  if (words.sleepers.load(std::memory_order_acquire) == 0) {
    // relaxed: behind `sleepers`
    if (words.full.exchange(false, std::memory_order_relaxed)) empty();
  }
  // relaxed: a thread that misses it wakes at once
  if (words.full.load(std::memory_order_relaxed)) return false;
  words.sleepers.fetch_add(1, std::memory_order_relaxed);  // relaxed: published by `armed`
  // PAIR ofi.wait.armed: the checks of the queues come after
  words.armed.store(true, std::memory_order_seq_cst);
  return true;
}

/// A call that has joined them has slept, or will not.
template <typename Words>
void leave_sleepers(Words& words, bool found_full) {
  // relaxed: published by `sleepers`
  if (found_full) words.full.store(true, std::memory_order_relaxed);
  words.sleepers.fetch_sub(1, std::memory_order_release);  // PAIR ofi.wait.sleepers: what it found
}

}  // namespace clan::ofi
