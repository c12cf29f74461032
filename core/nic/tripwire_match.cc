#include "nic/tripwire_match.h"

#include "base/futex.h"
#include "clan/detail/dekker.h"
#include "clan/detail/words.h"
#include "shm/asymmetric_fence.h"

namespace clan::nic {
namespace {

// A longer chain is a loop of a hostile table; Nic adds no more to an aperture.
constexpr int kMaxChain = 4096;

// The steps of a firing. A sender may be stopped or killed behind each of them: see nic/wakeup.h.
void ring(const NicImage& nic, std::uint32_t index, const shm::TripwireEntry& entry) {
  shm::TripwireSignal& signal = nic.signals->tripwires[index];
  // PAIR tripwire.state: the data precede it; Nic::tripwire_fired sees them
  dekker::set_bits(nic.signals->tripwire_state[index / 64], std::uint64_t{1} << (index % 64));
  signal.fired.notify();
  // relaxed: input, bounded below
  std::uint32_t queue = entry.queue.load(std::memory_order_relaxed);
  if (queue < shm::kMaxEventQueues) {
    post_event(nic, queue, entry.event.load(std::memory_order_relaxed));
  }
}

void fire(const NicImage& nic, std::uint32_t index, const shm::TripwireEntry& entry,
          std::uint32_t flags) {
  std::atomic<std::uint32_t>& armed = nic.signals->tripwires[index].armed;
  if ((flags & shm::kTripPersistent) != 0) {
    if (shm::is_armed(armed.load(std::memory_order_relaxed))) ring(nic, index, entry);
    return;  // relaxed: a hint
  }
  std::uint32_t word = 0;
  if (!begin_single_shot(armed, &word)) return;
  ring(nic, index, entry);
  end_single_shot(armed, word);
}

// Calls `each(index, entry)` for the tripwires of an aperture, until it returns false.
template <typename Each>
void for_each_of(const NicImage& nic, std::uint32_t aperture, Each&& each) {
  // PAIR aperture.chain: sees the entries published by Nic::add_tripwire
  std::uint32_t next = words::load_acquire(nic.tables->apertures[aperture].first_tripwire);
  for (int steps = 0; next < shm::kMaxTripwires && steps < kMaxChain; ++steps) {
    const shm::TripwireEntry& t = nic.tables->tripwires[next];
    const std::uint32_t index = next;
    next = words::load_acquire(t.next);  // PAIR aperture.chain: sees the next entry
    // relaxed: input; the table may have changed under us
    if (t.aperture.load(std::memory_order_relaxed) != aperture || !each(index, t)) return;
  }
}

}  // namespace

void match_tripwires(const NicImage& nic, std::uint32_t aperture, std::uint64_t offset,
                     std::uint64_t length, AccessKind kind) {
  if (aperture >= shm::kMaxApertures || length == 0) return;
  const shm::ApertureEntry& a = nic.tables->apertures[aperture];
  // PAIR aperture.armed: sees the entry of every tripwire whose chunks it shows
  const std::uint64_t armed = words::load_acquire(a.armed);
  std::uint64_t size = a.length.load(std::memory_order_relaxed);  // relaxed: constant while live
  if ((armed & shm::chunk_mask(size, offset, length)) == 0) return;
  fence_before_signals<shm::AsymmetricFence>();
  const std::uint64_t end = offset + length < offset ? ~std::uint64_t{0} : offset + length;
  for_each_of(nic, aperture, [&](std::uint32_t index, const shm::TripwireEntry& t) {
    // relaxed: published by the chain
    const std::uint32_t flags = t.flags.load(std::memory_order_relaxed);
    if ((flags & static_cast<std::uint32_t>(kind)) != 0 &&
        t.start.load(std::memory_order_relaxed) < end &&
        t.end.load(std::memory_order_relaxed) > offset) {
      fire(nic, index, t, flags);
    }
    return true;
  });
}

bool is_any_armed(const NicImage& nic, std::uint32_t aperture) {
  if (aperture >= shm::kMaxApertures) return false;
  bool armed = false;
  for_each_of(nic, aperture, [&](std::uint32_t index, const shm::TripwireEntry&) {
    // relaxed: a hint
    armed = shm::is_armed(nic.signals->tripwires[index].armed.load(std::memory_order_relaxed));
    return !armed;
  });
  return armed;
}

void match_for_packets(const NicImage& nic, std::uint32_t aperture, std::uint64_t offset,
                       std::uint64_t length, AccessKind kind) {
  fence_behind_packets<shm::AsymmetricFence>();
  match_tripwires(nic, aperture, offset, length, kind);
}

void post_event(const NicImage& nic, std::uint32_t queue, std::uint32_t event) {
  if (queue >= shm::kMaxEventQueues || event >= shm::kEventsPerQueue) return;
  shm::EventQueueMemory& q = nic.signals->queues[queue];
  std::uint32_t word = 0;
  if (!post_event_bit(q, event, &word)) return;
  if (shm::sleep_of(word) == shm::kSleepsOnFutex) {
    futex_wake(q.sleeping);
  } else if (nic.ringer != nullptr) {
    nic.ringer->ring(queue);
  } else {
    return;
  }
  end_wake(q, word);
}

}  // namespace clan::nic
