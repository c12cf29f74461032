// What the two ends of a VI's connection say to each other: records of a stream (clan/stream.h),
// one each. The stream's ring carries, towards each end, the peer's *cookie queue* (buffers it has
// posted) and its *transfer queue* (messages it has sent) of via-over-clan 3.3.
//
//   client                            server
//   its Regions and Buffers, Hello ->            (the listener of one VipConnectWait)
//                                  <- Regions and Buffers, Answer
//   then either way: Region, Buffer, Message, Failure
//
// Hello and Answer come behind the buffers: an end that may send knows what the other has posted.
//
// On one host a posted buffer is no more than a count, in memory of the end that has posted it,
// which the other end maps (posted_counts.h). The sender reads it when it knows of no buffer;
// mostly it knows from a Message how many there are. A Buffer record says of a buffer what the
// count does not: that it has another size than the one before, or where a message is to lie that
// the sender does not copy, because it is long or the ring would be full of such.
//
// All of it is input: the reader checks kind, sizes, counts and slots before it uses them.
#pragma once

#include <clan/cookie.h>

#include <array>
#include <cstdint>
#include <type_traits>

namespace clan::via {

inline constexpr std::uint32_t kWireMagic = 0x32616976;  // "via2"
inline constexpr std::uint32_t kMostSegments = 16;
inline constexpr std::uint32_t kMostDescriptors = 1024;  ///< posted on one queue
inline constexpr std::uint32_t kMostSlots = kMostDescriptors * kMostSegments;
inline constexpr std::uint32_t kNoSlot = ~0u;
inline constexpr std::uint32_t kMostDiscriminator = 32;
inline constexpr std::uint32_t kHostBytes = 16;  ///< an IPv6 address, or a mapped IPv4 one

enum class Kind : std::uint8_t { kHello = 1, kAnswer, kRegion, kBuffer, kMessage, kFailure };

/// What both ends must know of each other's VI.
struct WireAttributes {
  std::uint64_t max_transfer = 0, qos = 0;
  std::uint16_t level = 0;
  std::uint8_t rdma_write = 0, rdma_read = 0;
  std::uint8_t splits = 0;  ///< a long message may go on in its next buffers
  std::uint8_t defers = 0;  ///< its sends may wait for a buffer
  std::uint8_t reserved[2] = {};
  std::uint32_t copy_limit = 0;  ///< its longer messages go by RDMA
  std::uint32_t count = 0;       ///< which of `counts` is that of its posted buffers
  RdmaCookie counts;             ///< of its process; none: it has none
};

struct Hello {
  Kind kind = Kind::kHello;
  std::uint8_t discriminator_bytes = 0;
  std::uint16_t reserved = 0;
  std::uint32_t magic = kWireMagic;
  WireAttributes attributes;
  std::uint8_t host[kHostBytes] = {};
  std::uint8_t discriminator[kMostDiscriminator] = {};
};

struct Answer {
  Kind kind = Kind::kAnswer;
  std::uint8_t accepted = 0;
  std::uint16_t reserved = 0;
  std::uint32_t magic = kWireMagic;
  WireAttributes attributes;
};

/// Memory that buffers will lie in: from now on `slot` means this cookie.
struct RegionRecord {
  Kind kind = Kind::kRegion;
  std::uint8_t reserved[3] = {};
  std::uint32_t slot = 0;
  RdmaCookie cookie;
};
static_assert(sizeof(RegionRecord) == 56, "with the ring's head one cache line");

/// One stretch of a posted buffer. Not initialised: 16 of them are made for each record, and one is
/// filled.
struct Piece {
  std::uint64_t offset;  ///< in the slot's memory
  std::uint32_t bytes;
  std::uint32_t slot;
};

/// A receive descriptor has been posted; `segments` Pieces follow.
struct BufferRecord {
  Kind kind = Kind::kBuffer;
  std::uint8_t segments = 0;
  std::uint16_t posted = 1;   ///< buffers with this one, modulo 2^16
  std::uint32_t drained = 0;  ///< copied bytes taken from the ring so far, modulo 2^32
};

/// A descriptor of the receiver is complete. With kCopied its bytes follow; otherwise they lie in
/// its buffer already.
struct MessageRecord {
  static constexpr std::uint8_t kImmediate = 1, kCopied = 2, kContinues = 4, kTooLong = 8,
                                kRdmaWrite = 16;
  Kind kind = Kind::kMessage;
  std::uint8_t flags = 0;
  std::uint16_t posted = 0;  ///< buffers of the sender so far, modulo 2^16
  std::uint32_t length = 0;
  std::uint32_t immediate = 0;
  std::uint32_t drained = 0;
  /// In words: written by parts, and copied by words, it would have to wait for the former.
  std::array<std::uint64_t, 2> words(std::uint32_t posted_so_far,
                                     std::uint32_t drained_so_far) const {
    return {static_cast<std::uint64_t>(kind) | std::uint64_t{flags} << 8 |
                std::uint64_t{posted_so_far & 0xffff} << 16 | std::uint64_t{length} << 32,
            immediate | std::uint64_t{drained_so_far} << 32};
  }
};
static_assert(sizeof(MessageRecord) == 16, "40 bytes of data fit beside it in a cache line");

/// The sender ends the connection; `code` is a VIP_ERROR_CODE for the receiver.
struct FailureRecord {
  Kind kind = Kind::kFailure;
  std::uint8_t code = 0;
  std::uint16_t reserved = 0;
};

static_assert(std::is_trivially_copyable_v<Hello> && std::is_trivially_copyable_v<Answer>);

}  // namespace clan::via
