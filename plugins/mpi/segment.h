// The segment of a rank: CLAN memory that the other ranks of this host map and write into, with a
// channel for each of them. Its cookie is what ranks tell each other when they meet (Modex).
// Nothing of Open MPI here.
//
//   | SegmentHeader | channel 0 | channel 1 | …
//   a channel: | control | slot ring 32 KiB | bulk area |
//
// A rank that is to send takes a channel of the receiver by itself, the one that the receiver has
// reserved for it or a free one; the receiver polls as many as have ever been taken or reserved.
// Two ranks that are to send to each other reserve before they take, so that neither has a way
// without the other, while there are channels: ob1 answers by its own transport to that rank, and
// waits for ever where that is not the sender's. Memory that is not used is not there: a segment
// costs what has gone through it.
//
// All ranks that have the cookie may write all of the segment: they are processes of one user and
// of one job, or of jobs that have connected to each other. What is read from it is input all the
// same.
#pragma once

#include <clan/aperture.h>
#include <clan/memory.h>

#include <optional>

#include "channel.h"

namespace clan::mpi {

constexpr std::uint64_t kSegmentMagic = 0x32'67'73'69'70'6d'6e'63;  // "cnmpisg2"
constexpr std::uint32_t kMaxChannels = 4096;
/// what leads a channel: its control, cells for operations
constexpr std::size_t kControlBytes = 4096;

struct SegmentHeader {
  // line 0: constant after create
  alignas(kCacheLine) std::uint64_t magic;
  std::uint32_t channels;
  std::uint32_t bulk_bytes;  ///< of each channel
  std::uint64_t node;
  std::uint32_t longest;  ///< record that the owner sends to others, bytes
  // line 1: written by the owner
  /// it takes nothing more, and goes in order
  alignas(kCacheLine) std::atomic<std::uint32_t> leaving;
  // line 2: written by peers
  /// channels below this number have had an owner
  alignas(kCacheLine) std::atomic<std::uint32_t> taken;
  // line 3: written by peers
  alignas(kCacheLine) std::atomic<std::uint32_t> operations;  ///< posted, ever (operations.h)
};
static_assert(sizeof(SegmentHeader) == 4 * kCacheLine &&
              offsetof(SegmentHeader, leaving) == kCacheLine &&
              offsetof(SegmentHeader, taken) == 2 * kCacheLine &&
              offsetof(SegmentHeader, operations) == 3 * kCacheLine);
static_assert(std::is_standard_layout_v<SegmentHeader> &&
              std::is_trivially_destructible_v<SegmentHeader>);

constexpr std::size_t channel_bytes(std::uint32_t bulk_bytes) {
  return kControlBytes + kSlots * sizeof(Slot) + bulk_bytes;
}
constexpr std::size_t segment_bytes(std::uint32_t channels, std::uint32_t bulk_bytes) {
  return kControlBytes + channels * channel_bytes(bulk_bytes);
}
inline ChannelView channel_at(std::byte* segment, std::uint32_t index, std::uint32_t bulk_bytes) {
  std::byte* at = segment + kControlBytes + index * channel_bytes(bulk_bytes);
  return {reinterpret_cast<ChannelControl*>(at), reinterpret_cast<Slot*>(at + kControlBytes),
          at + kControlBytes + kSlots * sizeof(Slot), bulk_bytes};
}

/// Our own.
class Segment {
 public:
  /// `bulk_bytes` is a power of two. `longest`: as in SegmentHeader.
  static Result<Segment> create(Context& context, std::uint32_t channels, std::uint32_t bulk_bytes,
                                std::uint32_t longest);

  const RdmaCookie& cookie() const { return aperture_.cookie(); }
  SegmentHeader& header() const { return *header_; }
  std::uint32_t channels() const { return channels_; }
  ChannelView channel(std::uint32_t index) const {
    return channel_at(memory_.data(), index, bulk_bytes_);
  }

  /// Channels that have ever been taken, by what peers say; at most channels().
  std::uint32_t taken() const {
    // PAIR segment.taken: sees the owner of each channel below
    const std::uint32_t taken = header().taken.load(std::memory_order_acquire);
    return taken < channels_ ? taken : channels_;
  }
  /// A peer of that node finds a channel, whatever others take. False: none is free.
  bool reserve(NodeId node) const;
  /// Not any more, if it has not come.
  void release(NodeId node) const;
  /// Whether a peer of that node sends to us. Looks at all channels.
  bool hears(NodeId node) const;
  /// A channel whose sender has left: the next one may have it. Precondition: no record is in it.
  void give_back(std::uint32_t index) const;

 private:
  Segment(Memory memory, Aperture aperture, std::uint32_t channels, std::uint32_t bulk_bytes)
      : aperture_(std::move(aperture)),
        memory_(std::move(memory)),
        header_(reinterpret_cast<SegmentHeader*>(memory_.data())),
        channels_(channels),
        bulk_bytes_(bulk_bytes) {}

  Aperture aperture_;
  Memory memory_;  ///< goes first: the aperture keeps no copy of what nobody has any more
  SegmentHeader* header_;
  std::uint32_t channels_;
  std::uint32_t bulk_bytes_;
};

/// A peer's, and the channel in it that is ours.
class RemoteSegment {
 public:
  /// EPROTO: what lies there is no segment. ENOSPC: no channel is free. Else as
  /// RemoteAperture::import().
  static Result<RemoteSegment> take_channel(Context& context, const RdmaCookie& cookie,
                                            std::uint64_t name, std::int64_t timeout_ms);

  const ChannelView& channel() const { return channel_; }
  SegmentHeader& header() const { return *header_; }
  /// Whether records of the one fit into channels of the other, both ways: they do where a channel
  /// has room for two.
  bool fits(const Segment& own) const {
    return header_->longest <= own.header().bulk_bytes / 2 &&
           own.header().longest <= channel_.bulk_bytes / 2;
  }
  /// The peer has said that it goes.
  bool leaving() const {
    // PAIR segment.leaving: what it sent before is there
    return header_->leaving.load(std::memory_order_acquire) != 0;
  }
  /// ECONNRESET: the peer has died. No system call.
  Status check() const { return aperture_.check(); }
  /// We send nothing more.
  void leave_channel();

 private:
  RemoteSegment(RemoteAperture aperture, SegmentHeader* header, ChannelView channel)
      : aperture_(std::move(aperture)), header_(header), channel_(channel) {}

  RemoteAperture aperture_;
  SegmentHeader* header_;
  ChannelView channel_;
};

}  // namespace clan::mpi
