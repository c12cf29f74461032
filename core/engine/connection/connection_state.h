// What the ends of a connection tell each other (out-of-band messages of set-up and tear-down,
// types of records), and what a Connection keeps: its own region, the peer's, and what it shares
// with the driver thread. connection.h explains.
//
// Life:   connecting ──accept──> open ──close / reset──> closed
//   Set-up: client sends kConnect{cookie of its region}; the server answers kAccept{cookie of its
//   own} or kRefuse. Tear-down: each side sends kClose once and writes nothing after it; a region
//   is reused only when both sides have closed or the peer is dead.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "clan/cookie.h"
#include "clan/detail/words.h"
#include "clan/face/wait.h"
#include "clan/oob.h"
#include "engine/context/context_core.h"
#include "engine/event/event_queue_core.h"
#include "nic/pinned_payload.h"
#include "shm/ring.h"

namespace clan::engine {

/// What a record carries. Types from 16 are the message endpoint's.
enum class RecordType : std::uint8_t {
  kData = 1,
  kFin = 2,  ///< the producer has half-closed: no more records
  kMessage = 16,
  kFragment = 17,
  kLastFragment = 18,
  kOffer = 19,  ///< a large message lies in the sender's memory (payload: OfferRecord)
};

/// Whether a record wakes a thread that sleeps, and is an event.
enum class Notify : bool { kNo, kYes };

/// Kinds of endpoints that connect to each other.
enum class ConnectionKind : std::uint32_t { kStream = 1, kMessages = 2 };

constexpr std::uint32_t kOobConnect = kOobInternal | 1;
constexpr std::uint32_t kOobAccept = kOobInternal | 2;
constexpr std::uint32_t kOobRefuse = kOobInternal | 3;
/// the sender touches the connection no more
constexpr std::uint32_t kOobClose = kOobInternal | 4;
constexpr std::uint32_t kOobReset = kOobInternal | 5;  ///< it has given it up; kClose follows
// kOobLookUp and kOobFound are 6 and 7: aperture_core.h.
/// Asks whether the peer is there. Does nothing, but a host refuses it for a process that has gone.
constexpr std::uint32_t kOobAsk = kOobInternal | 8;

/// Time for a peer's driver thread to answer kConnect.
constexpr std::uint64_t kAcceptTimeoutNs = 10'000'000'000u;

/// Payload of kConnect and kAccept.
struct ConnectRecord {
  RdmaCookie region;
  std::uint32_t ring_lines = 0;
  ConnectionKind kind = ConnectionKind::kStream;
  Address from;  ///< kMessages: the connecting endpoint itself
  /// 1: the sender of this record can read the other's memory directly
  std::uint32_t can_copy = 0;
  std::uint32_t ring_version = shm::kRingVersion;
};
static_assert(sizeof(ConnectRecord) <= kOobPayload);

/// The largest ring; no context makes a larger one.
constexpr std::uint64_t kMostRingBytes = 64u << 20;

constexpr std::uint64_t kRegionOffers = 64;
constexpr std::uint64_t kRegionRing = 128;

/// Called when something that it asked for is answered, by any thread, without locks of the engine.
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
  std::atomic<bool> rests_{false};  ///< one of them may rest: end_rest()
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
  /// Where records are built when the ring is not mapped. The link copies from the first, for short
  /// ones; the others last until the peer has acknowledged them.
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
};

}  // namespace clan::engine
