// What consumers of one event queue tell each other; nic/wakeup.h has the producers' protocol.
//
//   leaves with events in hand              is about to sleep
//     pending = what is left                  sleeping = how, in each lane
//     sleeping, in any lane? wake             root and pending both 0? sleep
//
// Events in hand show in no lane. All accesses are sequentially consistent: either the consumer
// that leaves sees `sleeping`, or the one about to sleep sees `pending`.
//
// `sleeping` says how the last consumer sleeps, and a waker wakes those that sleep so. So all sleep
// on the descriptor once there is one: a consumer about to sleep on the futex stores `sleeping` and
// then checks for it; its maker stores it, then wakes those on the futex.
//
// Templates, so that tests/model/engine/event/queue_consumers_model_test.cc runs these very lines
// under every interleaving of a machine with store buffers.
#pragma once

#include <atomic>
#include <cstdint>

#include "nic/wakeup.h"
#include "shm/nic_memory.h"

namespace clan::engine {

/// Announces a consumer's sleep. False: there is something to take, in a lane or in another's hand.
/// `each_lane(do)` calls do(queue memory) until it is false. `*word`: for the last lane's futex.
template <typename EachLane, typename Word64>
bool prepare_consumer(const EachLane& each_lane, Word64& pending, std::uint32_t how,
                      std::uint32_t* word) {
  if (!each_lane([=](auto& queue) { return nic::prepare_sleep(queue, how, word); })) return false;
  // PAIR queue.pending: `sleeping` is stored; sees what a consumer has left
  return pending.load(std::memory_order_seq_cst) == 0;
}

/// The same, on the futex. False, too, once there is a descriptor (`fd` not negative): then
/// `ring()` wakes those that sleep on it, as `sleeping` may no longer say so.
template <typename EachLane, typename Word64, typename Fd, typename Ring>
bool prepare_on_futex(const EachLane& each_lane, Word64& pending, const Fd& fd, const Ring& ring,
                      std::uint32_t* word) {
  const bool quiet = prepare_consumer(each_lane, pending, shm::kSleepsOnFutex, word);
  // PAIR queue.fd: `sleeping` is stored; sees that there is a descriptor, or is woken
  if (fd.load(std::memory_order_seq_cst) < 0) return quiet;
  ring();
  return false;
}

/// The only consumer that sleeps has woken, and looks before it sleeps again.
template <typename EachLane>
void withdraw_consumer(const EachLane& each_lane) {
  each_lane([](auto& queue) {
    // relaxed: a producer that still sees `sleeping` rings for nothing
    const std::uint32_t word = queue.sleeping.load(std::memory_order_relaxed);
    queue.sleeping.store(shm::awake_after(word), std::memory_order_relaxed);
    return true;
  });
}

/// Wakes consumers that sleep. `wake(queue memory, how)` wakes those of that kind there.
template <typename EachLane, typename Wake>
void wake_consumers(const EachLane& each_lane, const Wake& wake) {
  each_lane([&wake](auto& queue) {
    std::uint32_t word = 0;
    if (!nic::begin_wake(queue, &word)) return true;
    wake(queue, shm::sleep_of(word));
    nic::end_wake(queue, word);
    return true;
  });
}

/// Leaves with events in hand, listed in `pending`: wakes one that has fallen asleep meanwhile.
template <typename EachLane, typename Word64, typename Wake>
void hand_on_events(const EachLane& each_lane, Word64& pending, const Wake& wake) {
  // PAIR queue.pending: stored before the check for sleepers; they check it before they sleep
  pending.fetch_or(0, std::memory_order_seq_cst);
  wake_consumers(each_lane, wake);
}

/// There is a descriptor now: consumers that sleep on the futex come and sleep on it.
template <typename EachLane, typename Fd, typename Wake>
void publish_queue_fd(const EachLane& each_lane, Fd& fd, int number, const Wake& wake) {
  // PAIR queue.fd: to ring(); stored before the check for sleepers; they check it before they sleep
  fd.store(number, std::memory_order_seq_cst);
  wake_consumers(each_lane, wake);
}

}  // namespace clan::engine
