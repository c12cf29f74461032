// What a Connection keeps: its own region, which it receives by; the peer's, which it sends by; and
// what it shares with the driver thread. Only Connection uses it; connection.h says how.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "clan/detail/words.h"
#include "clan/face/wait.h"
#include "engine/context/context_core.h"
#include "engine/event/event_queue_core.h"
#include "nic/pinned_payload.h"
#include "shm/ring.h"

namespace clan::engine {

/// Called when something that it has asked for is answered. Called by any thread, which holds none
/// of the engine's locks.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  virtual void on_answer() = 0;
};

class ConnectionState {
 protected:
  ConnectionState(std::shared_ptr<ContextCore> context, std::shared_ptr<nic::Link> link,
                  nic::Nic& nic);
  ~ConnectionState() = default;

  std::shared_ptr<ContextCore> context_;
  std::shared_ptr<nic::Link> link_;
  nic::Nic& nic_;

  // Receiving: our region.
  std::shared_ptr<RegionArena> arena_;
  RegionArena::Region region_;
  RdmaCookie region_cookie_;
  std::uint32_t ring_tripwire_ = shm::kNoTripwire;
  std::uint32_t credit_tripwire_ = shm::kNoTripwire;
  std::uint32_t event_tripwire_ = shm::kNoTripwire;
  shm::RecordRing in_ring_;
  std::byte* in_memory_ = nullptr;  ///< of in_ring_
  shm::RingConsumer consumer_;
  std::atomic<std::uint16_t> peer_cpu_{0};
  static constexpr int kHeelPauses = 3;  // measured: 9 delay answers
  int heel_pauses_ = kHeelPauses;        // see wait_readable()
  unsigned taken_ = 0;                   // records since the last wait
  Waiter read_waiter_;

  // Sending: the peer's region.
  alignas(kCacheLine) nic::RemoteHandle remote_;
  shm::RecordRing out_ring_;
  shm::RingProducer producer_;
  shm::RingSlot slot_;
  std::uint64_t planned_at_ = 0;  ///< where consumer_ was when plan() last looked
  /// Where records are built when the ring is not mapped. The first is for short ones, which the
  /// link copies; the others last until the peer has acknowledged what is in them.
  std::vector<std::shared_ptr<nic::PinnedPayload>> staging_;
  std::size_t building_ = 0;  ///< the one in use
  bool fin_sent_ = false;
  bool remote_imported_ = false;
  bool peer_can_copy_ = false;
  Waiter write_waiter_;

  // Shared with the driver thread.
  std::atomic<bool> peer_gone_{false};
  std::atomic<int> reset_reason_{0};
  std::atomic<bool> want_room_{false};  ///< reserve() has failed since the last registration
  std::uint32_t endpoint_ = 0;
  std::uint32_t remote_endpoint_ = 0;
  Address remote_address_;
  std::mutex mutex_;  ///< set-up, tear-down and event binding
  std::condition_variable answered_;
  bool answer_known_ = false;
  int answer_err_ = 0;
  std::weak_ptr<AnswerSink> asker_;
  std::atomic<bool> closed_{false};
  bool exposed_ = false;      ///< the peer may know our region
  bool peer_done_ = false;    ///< it does not touch it any more
  bool closed_here_ = false;  ///< nor do we
  EventBinding events_, also_;
  bool owns_event_ = false;
};

}  // namespace clan::engine
