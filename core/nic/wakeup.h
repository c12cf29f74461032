// The two protocols that decide whether a wake-up can be lost, as templates:
// tests/model/nic/wakeup_model_test.cc runs them in every interleaving with store buffers.
//
// 1. Tripwire, single shot (receiver about to sleep)          sender
//      signal.armed = next arming                               store data
//      table.armed |= chunks, heavy fence;                      light fence
//        if they are there already: full fence                  if table.armed & chunks:
//      if data is there: do not sleep                             full fence
//      sleep until signal.fired changes                           if signal.armed: fire,
//                                                                 signal.armed = that one is over
//    Either the sender sees table.armed, or its data precede the heavy fence and the receiver sees
//    them. Once senders see table.armed they fence themselves, so a receiver that sleeps often
//    leaves the bits there: a heavy fence interrupts every processor. Threads of the receiver's
//    process deliver packets and run a full fence behind them; a receiver that waits for packets
//    alone runs that one, too, instead of the heavy one.
//
// 2. Event queue                                              consumer about to sleep
//    producer: leaf |= bit; mid |= bit; root |= bit             sleeping = next sleep, kSleepsOn...
//              if sleeping: sleeping |= being woken; ring;      if root != 0: do not sleep
//                           sleeping = awake, of the same sleep
//    Sequentially consistent: each side does a read-modify-write before its load. The consumer
//    clears downwards from the root, the producer sets upwards from the leaf: a set leaf is always
//    found.
//
// A sender or producer may stop anywhere: until it has rung, each of the others rings by itself. A
// late one finds another arming or sleep in the word, and leaves it alone.
#pragma once

#include <atomic>
#include <cstdint>

#include "shm/nic_memory.h"

namespace clan::nic {

/// Receiver: a part of arm_single_shots().
template <typename Word32, typename Word64>
void announce_single_shot(Word32& signal_armed, Word64& table_armed, std::uint64_t chunks) {
  // relaxed: only the owner arms, under its lock; a sender that disarms meanwhile changes no count
  const std::uint32_t was = signal_armed.load(std::memory_order_relaxed);
  // PAIR signal.armed: what came before is seen by the sender that fires it, whose read of
  // table_armed may be an old one
  signal_armed.store(shm::armed_after(was), std::memory_order_release);
  // PAIR aperture.armed: publishes the tripwire's entry and signal.armed to match_tripwires
  table_armed.store(table_armed.load(std::memory_order_relaxed) | chunks,
                    std::memory_order_release);
}

/// Receiver: announces that each tripwire that `each(arm)` arms shall wake it; look for data again
/// afterwards. `each` returns whether every sender had seen the bits of all of them before.
/// `heavy`: the fence if not; where only packets fire them the even one, which the delivering
/// thread runs, too.
template <typename Fence, void (*heavy)() = Fence::heavy, typename Each>
void arm_single_shots(Each&& each) {
  const bool seen = each([](auto& signal_armed, auto& table_armed, std::uint64_t chunks) {
    announce_single_shot(signal_armed, table_armed, chunks);
  });
  // PAIR fence.even: what has been armed, before the look for data
  const auto fence = seen ? &Fence::even : heavy;
  fence();
}

/// Sender, after its data has been stored: must it look into the CAM? One load while none is armed.
template <typename Fence, typename Word64>
std::uint64_t armed_chunks_after_store(const Word64& table_armed) {
  Fence::light();
  return table_armed.load(std::memory_order_relaxed);  // relaxed: ordered by the fence pair
}

/// The same for packets, by the thread that has delivered them, before it loads table_armed.
template <typename Fence>
void fence_behind_packets() {
  // PAIR fence.even: what has been delivered, before the check whether a thread has armed
  Fence::even();
}

/// Sender that has seen bits in table_armed, before it loads signal_armed: makes its data visible
/// to a receiver that has armed without a heavy fence.
template <typename Fence>
void fence_before_signals() {
  // PAIR fence.even: the data, before the loads of signal.armed
  Fence::even();
}

/// Sender: it is armed: fire it, then end_single_shot(). So each of several, until one has done so.
template <typename Word32>
bool begin_single_shot(const Word32& signal_armed, std::uint32_t* word) {
  // PAIR signal.armed: sees what was written before arming
  *word = signal_armed.load(std::memory_order_acquire);
  return shm::is_armed(*word);
}

/// Sender: it has been fired, and the receiver has been rung.
template <typename Word32>
void end_single_shot(Word32& armed, std::uint32_t word) {
  // PAIR signal.armed: the ring comes before "not armed"; a later arming is another word
  (void)armed.compare_exchange_strong(word, shm::disarmed_after(word), std::memory_order_release);
}

/// There is news. True when the consumer sleeps (shm::sleep_of(*word)): ring it, then end_wake().
template <typename Queue>
bool begin_wake(Queue& q, std::uint32_t* word) {
  // PAIR event.sleeping: stored before the consumer's last check of root
  std::uint32_t is = q.sleeping.load(std::memory_order_seq_cst);
  if (shm::sleep_of(is) == shm::kAwake) return false;
  *word = is | shm::kBeingWoken;
  // PAIR event.sleeping: one that compares it does not fall asleep any more. If it has changed the
  // consumer will look, or others wake it as well.
  if (is != *word) (void)q.sleeping.compare_exchange_strong(is, *word, std::memory_order_seq_cst);
  return true;
}

/// The consumer has been rung.
template <typename Queue>
void end_wake(Queue& q, std::uint32_t word) {
  // PAIR event.sleeping: the ring comes before "awake"; a later sleep is another word
  (void)q.sleeping.compare_exchange_strong(word, shm::awake_after(word), std::memory_order_seq_cst);
}

/// Producer: posts an event; true as of begin_wake(). It relies on no other to finish the way to
/// the root, or to ring. EventQueueCore::rescan() repairs what one that died left half-done.
template <typename Queue>
bool post_event_bit(Queue& q, std::uint32_t event, std::uint32_t* word) {
  const std::uint32_t leaf = event / 64;
  // PAIR event.leaf: the event's data precede it; take_events sees them
  q.leaf[leaf].fetch_or(std::uint64_t{1} << (event % 64), std::memory_order_seq_cst);
  const std::uint64_t mid_bit = std::uint64_t{1} << (leaf % 64);
  if ((q.mid[leaf / 64].load(std::memory_order_seq_cst) & mid_bit) == 0) {
    // PAIR event.mid: publishes the leaf to take_events
    q.mid[leaf / 64].fetch_or(mid_bit, std::memory_order_seq_cst);
  }
  const std::uint64_t root_bit = std::uint64_t{1} << (leaf / 64);
  if ((q.root.load(std::memory_order_seq_cst) & root_bit) == 0) {
    // PAIR event.root: publishes the mid word; the consumer stores `sleeping`, then loads root
    q.root.fetch_or(root_bit, std::memory_order_seq_cst);
  }
  return begin_wake(q, word);
}

/// Consumer: takes a word of events, 0 = none; `*base` is bit 0's. `*cursor` makes rounds fair.
template <typename Queue>
std::uint64_t take_events(Queue& q, std::uint32_t* cursor, std::uint32_t* base) {
  for (;;) {
    // PAIR event.root: sees the mid words
    std::uint64_t root = q.root.load(std::memory_order_seq_cst);
    if (root == 0) return 0;
    const std::uint32_t start = *cursor / 64;
    std::uint64_t ahead = root & ~((std::uint64_t{1} << start) - 1);
    auto r = static_cast<std::uint32_t>(__builtin_ctzll(ahead != 0 ? ahead : root));
    if (r >= shm::kEventsPerQueue / 64 / 64) {  // no producer of this version sets these bits
      // order: as below
      q.root.fetch_and(~(std::uint64_t{1} << r), std::memory_order_seq_cst);
      continue;
    }
    // PAIR event.mid: sees the leaves
    std::uint64_t mid = q.mid[r].load(std::memory_order_seq_cst);
    if (mid == 0) {
      // PAIR event.root: cleared, then the look again: a producer may have set mid in between
      q.root.fetch_and(~(std::uint64_t{1} << r), std::memory_order_seq_cst);
      if (q.mid[r].load(std::memory_order_seq_cst) != 0) {
        q.root.fetch_or(std::uint64_t{1} << r, std::memory_order_seq_cst);
      }
      continue;
    }
    std::uint64_t later = r == start ? mid & ~((std::uint64_t{1} << (*cursor % 64)) - 1) : 0;
    if (r == start && later == 0 && (root & ~(std::uint64_t{1} << r)) != 0) {
      // The round has passed all of this mid word: the others come first.
      *cursor = (start + 1) * 64 % (shm::kEventsPerQueue / 64);
      continue;
    }
    auto m = static_cast<std::uint32_t>(__builtin_ctzll(later != 0 ? later : mid));
    const std::uint32_t word = r * 64 + m;
    *cursor = (word + 1) % (shm::kEventsPerQueue / 64);
    // PAIR event.mid: before the leaf: a producer that sets the leaf afterwards sets mid again
    q.mid[r].fetch_and(~(std::uint64_t{1} << m), std::memory_order_seq_cst);
    // PAIR event.leaf: sees the data the events announce
    std::uint64_t bits = q.leaf[word].exchange(0, std::memory_order_seq_cst);
    if (bits == 0) continue;
    *base = word * 64;
    return bits;
  }
}

/// Consumer: announces sleep; `*word` is for the futex. False: there is something to take. Then
/// `sleeping` stays, as another consumer may sleep: better a needless wake-up than a lost one.
template <typename Queue>
bool prepare_sleep(Queue& q, std::uint32_t how, std::uint32_t* word) {
  std::uint32_t was = q.sleeping.load(std::memory_order_relaxed);  // relaxed: compared below
  do {
    *word = shm::asleep_after(was, how);
    // PAIR event.sleeping: a producer that sets root after our load sees it
  } while (!q.sleeping.compare_exchange_strong(was, *word, std::memory_order_seq_cst));
  // PAIR event.root: sees what was posted before `sleeping` was
  return q.root.load(std::memory_order_seq_cst) == 0;
}

}  // namespace clan::nic
