// What the two ends of a connection tell each other: out-of-band messages of set-up and tear-down,
// and the types of records.
//
// Life:   connecting ──accept──> open ──close / reset──> closed
//   Set-up: client sends kConnect{cookie of its region}; the server answers kAccept{cookie of its
//   own} or kRefuse. Tear-down: each side sends kClose once and writes nothing after it; a region
//   is reused only when both sides have closed or the peer is dead.
#pragma once

#include <cstdint>

#include "clan/context.h"
#include "clan/cookie.h"
#include "clan/oob.h"
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
/// Whether the peer is there: nothing is done by it, but a host refuses it for a process that is
/// gone
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

}  // namespace clan::engine
