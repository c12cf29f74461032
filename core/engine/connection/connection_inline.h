// The inlined parts of Connection: sending records and waiting. Included by connection.h.
#pragma once

#include "clan/detail/copy.h"
#include "clan/detail/cpu.h"
#include "engine/connection/connection.h"
#include "nic/wakeup.h"
#include "shm/asymmetric_fence.h"

namespace clan::engine {

constexpr std::uint64_t kPrefetchLines = 8;  ///< measured: 16 is no better, 48 does harm
/// lines; larger records keep the memory busy by themselves
constexpr std::uint64_t kMostPrefetched = 4;

inline shm::RingHead head_of(std::uint64_t payload, RecordType type) {
  return shm::RingHead::make(static_cast<std::uint32_t>(payload), static_cast<std::uint8_t>(type),
                             current_cpu_tag());
}

inline void Connection::notify(std::uint64_t offset, std::uint64_t length) {
  if (remote_.light_fence) {
    if (nic::armed_chunks_after_store<shm::AsymmetricFence>(*remote_.armed) == 0) return;
  } else {
    shm::AsymmetricFence::full();
    // relaxed: after the full fence
    if (remote_.armed->load(std::memory_order_relaxed) == 0) return;
  }
  notify_armed(offset, length);
}

inline bool Connection::readable() {
  auto& line = shm::head_at(in_memory_, in_ring_.index(consumer_.glance()));
  const shm::RingHead head{line.load(std::memory_order_relaxed)};  // relaxed: peek() acquires
  // The second line of the record is read next. Behind the last one the producer is at work.
  if (shm::lines_for(head.length()) > 1)
    __builtin_prefetch(reinterpret_cast<const std::byte*>(&line) + kCacheLine);
  return head.word != 0;
}

// Plans a record: 1 = planned, 0 = no room, -1 = broken. The ring is asked once in a while only.
[[gnu::always_inline]] inline int Connection::plan(std::uint64_t payload, shm::RingSlot* slot) {
  // relaxed: ours. A load by itself: a wider one would wait for the last record's lines, as the
  // store of the tail does.
  const std::uint64_t tail = std::atomic_ref(producer_.tail).load(std::memory_order_relaxed);
  if (out_ring_.follow(tail, producer_.bound, payload, slot)) [[likely]]
    return 1;
  return plan_on(payload, slot);
}

// Publishes a planned record, in the peer's mapped memory.
inline void Connection::publish(const shm::RingSlot& slot, shm::RingHead head, Notify wakes) {
  std::byte* const ring = remote_.mapped + kRegionRing;
  out_ring_.publish(ring, slot, head);
  out_ring_.advance(producer_, slot, out_ring_.lines);
  if (wakes == Notify::kYes) {
    notify(kRegionRing + out_ring_.index(slot.position) * kCacheLine, kCacheLine);
  }
  // A busy producer of small records finds one line after the other in the consumer's cache.
  // Prefetch those of a later record; never lines that have not been read yet.
  const std::uint64_t ahead = out_ring_.index(producer_.tail) + kPrefetchLines;
  if (slot.lines <= kMostPrefetched && ahead + slot.lines <= producer_.bound) {
    for (std::uint64_t i = 0; i < slot.lines; ++i)
      prefetch_for_write(ring + (ahead + i) * kCacheLine);
  }
}

[[gnu::always_inline]] inline bool Connection::append(std::span<const std::byte> first,
                                                      std::span<const std::byte> second,
                                                      RecordType type, Notify wakes) {
  if (!mapped()) [[unlikely]]
    return append_staged(first, second, type, wakes);
  const std::uint64_t payload = first.size() + second.size();
  shm::RingSlot slot;
  const int rc = plan(payload, &slot);
  if (rc <= 0) [[unlikely]] {
    no_room(rc);
    return false;
  }
  std::byte* const room = out_ring_.payload_at(remote_.mapped + kRegionRing, slot);
  copy_short(room, first.data(), first.size());
  copy_short(room + first.size(), second.data(), second.size());
  if (may_write()) [[likely]]
    publish(slot, head_of(payload, type), wakes);
  return true;
}

inline void Connection::rest(std::uint32_t tripwire) {
  nic_.rest(tripwire);
  rests_.store(true, std::memory_order_relaxed);  // relaxed: a hint
}

// Once in a while, by an end that sends or receives much: it may no longer sleep.
inline void Connection::end_rest() {
  if (!rests_.load(std::memory_order_relaxed)) [[likely]]  // relaxed: a hint
    return;
  rests_.store(false, std::memory_order_relaxed);  // relaxed: before what another thread notes
  if (nic_.end_rest(region_cookie_.aperture))
    rests_.store(true, std::memory_order_relaxed);  // relaxed: a hint
}

/// Arms a tripwire, looks once more and sleeps until it fires. Answers whether it slept.
template <typename Ready>
bool Connection::sleep_on(std::uint32_t tripwire, std::uint64_t deadline_ns, Ready&& ready,
                          Status* status) {
  auto& signal = nic_.image().signals->tripwires[tripwire];
  const std::uint32_t seen = signal.fired.prepare_wait();
  // By what the link is: a peer may offer memory that cannot be mapped, and have mapped this.
  link_->capabilities().mapped ? nic_.arm(tripwire) : nic_.arm_for_packets(tripwire);
  int rc = 0;
  bool slept = false;
  if (!ready()) {
    count(context_->counters().sleeps);
    rc = link_->sleep(signal.fired, seen, deadline_ns);
    count(context_->counters().wakeups);
    slept = true;
  }
  rest(tripwire);
  (void)nic_.test_and_clear(tripwire);
  if (rc == EINTR) *status = Error{EINTR, "a signal arrived while waiting for the peer"};
  return slept;
}

template <typename Ready>
Status Connection::wait_for(Waiter& waiter, std::uint32_t tripwire, Ready&& ready,
                            std::uint64_t deadline_ns, const char* late) {
  const bool spins = context_->options().wait.mode != WaitOptions::Mode::kSleep;
  for (;;) {
    if (!context_->usable()) return unusable_error();
    Status s;
    const auto sleep = [&] { return sleep_on(tripwire, deadline_ns, ready, &s); };
    // Someone has to fetch the packets of such a link. A thread that does not spin sleeps in a call
    // that does, and that returns at once where there is something.
    const auto look = [&] {
      if (spins && !mapped()) link_->progress();
      return ready();
    };
    switch (waiter.wait(look, {peer_cpu()}, deadline_ns, sleep)) {
      case WaitResult::kReady: return {};
      case WaitResult::kTimedOut: return Error{ETIMEDOUT, late};
      case WaitResult::kAgain: break;
    }
    if (!s) return s;
  }
}

}  // namespace clan::engine
