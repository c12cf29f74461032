// The segment of a rank: CLAN memory that the other ranks of this host map and write into, with a
// channel for each of them. Its cookie is what ranks tell each other when they meet (Modex).
// Nothing of Open MPI here.
//
//   | SegmentHeader | channel 0 | channel 1 | …
//   a channel: | control | slot ring 32 KiB | bulk area |
//
// A rank that is to send has a channel granted in its own segment for the answers, and takes one of
// the receiver's (channel_grants.h); the receiver polls as many as have ever had an owner. Memory
// that is not used is not there: a segment costs what has gone through it.
//
// All ranks that have the cookie may write all of the segment: they are processes of one user and
// of one job, or of jobs that have connected to each other. What is read from it is input all the
// same.
#pragma once

#include <clan/aperture.h>
#include <clan/detail/dekker.h>
#include <clan/detail/words.h>
#include <clan/memory.h>

#include <cerrno>
#include <optional>

#include "channel.h"
#include "channel_grants.h"

namespace clan::mpi {

constexpr std::uint64_t kSegmentMagic = 0x33'67'73'69'70'6d'6e'63;  // "cnmpisg3"
constexpr std::uint32_t kMaxChannels = 4096;
/// what leads a channel: its control, cells for operations
constexpr std::size_t kControlBytes = 4096;

struct SegmentHeader {
  // line 0: constant after create
  alignas(kCacheLine) std::uint64_t magic;
  std::uint32_t channels;
  std::uint32_t bulk_bytes;  ///< of each channel
  std::uint32_t longest;     ///< record that the owner sends to others, bytes
  // line 1: written by the owner
  /// it takes nothing more, and goes in order
  alignas(kCacheLine) std::atomic<std::uint32_t> leaving;
  // line 2: written by peers and the owner
  /// channels below this number have had an owner
  alignas(kCacheLine) std::atomic<std::uint32_t> taken;
  std::atomic<std::uint32_t> closed;  ///< 1: it takes no rank that it has not met
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

/// The channels of a segment as channel_grants.h sees them, mapped anywhere. Any thread.
class ChannelTable {
 public:
  ChannelTable(std::byte* base, std::uint32_t channels, std::uint32_t bulk_bytes)
      : base_(base), channels_(channels), bulk_bytes_(bulk_bytes) {}

  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(base_); }
  ChannelView channel(std::uint32_t index) const { return channel_at(base_, index, bulk_bytes_); }
  std::uint32_t bulk_bytes() const { return bulk_bytes_; }

  std::uint32_t size() const { return channels_; }
  std::atomic<std::uint64_t>& owner(std::uint32_t index) const {
    return channel(index).control->owner;
  }
  std::atomic<std::uint32_t>& closed() const { return header().closed; }
  bool leaving(std::uint32_t index) const {
    // relaxed: only its value counts
    return channel(index).control->leaving.load(std::memory_order_relaxed) != 0;
  }
  /// Channels that have ever had an owner, by what peers say; at most size().
  std::uint32_t used() const {
    // PAIR segment.taken: sees the owner of each channel below
    const std::uint32_t taken = dekker::load(header().taken);
    return taken < channels_ ? taken : channels_;
  }
  void use(std::uint32_t index) const;

 private:
  std::byte* base_;
  std::uint32_t channels_;
  std::uint32_t bulk_bytes_;
};

/// Our own.
class Segment {
 public:
  /// `bulk_bytes` is a power of two. `longest`: as in SegmentHeader.
  static Result<Segment> create(Context& context, std::uint32_t channels, std::uint32_t bulk_bytes,
                                std::uint32_t longest);

  const RdmaCookie& cookie() const { return aperture_.cookie(); }
  SegmentHeader& header() const { return table_.header(); }
  ChannelView channel(std::uint32_t index) const { return table_.channel(index); }
  const ChannelTable& table() const { return table_; }
  NodeId node() const { return cookie().node; }
  std::uint32_t channels() const { return table_.size(); }
  std::uint32_t bulk_bytes() const { return table_.bulk_bytes(); }
  /// Channels that have ever had an owner, by what peers say.
  std::uint32_t taken() const { return table_.used(); }

  /// A peer of that node has or finds a channel, whatever others take. False: none is free for it
  /// and none will be; the segment is closed to all that it has not met.
  bool grant(NodeId node) const { return grant_channel(table_, node); }
  /// We cannot reach that peer: no to it, and to all that ask from now on. False: it has come.
  bool refuse(NodeId node) const { return refuse_rank(table_, node); }
  /// A peer that has died: its channel is given back when it has been read.
  void forget(NodeId node) const;
  /// Whether a peer of that node sends to this rank. Checks all channels.
  bool hears(NodeId node) const;
  /// A channel whose sender has left: the next one may have it. Precondition: no record is in it.
  void give_back(std::uint32_t index) const;

 private:
  Segment(Memory memory, Aperture aperture, std::uint32_t channels, std::uint32_t bulk_bytes)
      : aperture_(std::move(aperture)),
        memory_(std::move(memory)),
        table_(memory_.data(), channels, bulk_bytes) {}

  Aperture aperture_;
  Memory memory_;  ///< goes first: the aperture keeps no copy of what nobody has any more
  ChannelTable table_;
};

/// A peer's, and the channel in it that is ours.
class RemoteSegment {
 public:
  /// EPROTO: what lies there is no segment. Else as RemoteAperture::import().
  static Result<RemoteSegment> import(Context& context, const RdmaCookie& cookie,
                                      std::int64_t timeout_ms);
  /// A channel for us where the peer has one in our segment. False: the peer gets the same answer.
  /// `name`: of this rank.
  bool meet(const Segment& own, std::uint64_t name);

  const ChannelView& channel() const { return channel_; }
  SegmentHeader& header() const { return table_.header(); }
  /// Whether records of the one fit into channels of the other, both ways: they do where a channel
  /// has room for two.
  bool fits(const Segment& own) const {
    return header().longest <= own.bulk_bytes() / 2 &&
           own.header().longest <= table_.bulk_bytes() / 2;
  }
  /// The peer has said that it goes.
  bool leaving() const {
    // PAIR segment.leaving: what it sent before is there
    return words::load_acquire(header().leaving) != 0;
  }
  /// ECONNRESET: the peer has died. No system call.
  Status check() const {
    return aperture_ ? aperture_->check() : Status(Error{ECONNRESET, "the peer has ended"});
  }
  /// We send nothing more.
  void leave_channel();
  /// The peer has ended: its memory is given back, and what is still written goes to `nowhere`, a
  /// segment of this process with one channel. Nobody may be using channel().
  void give_up(const ChannelTable& nowhere) {
    table_ = nowhere;
    channel_ = nowhere.channel(0);
    aperture_.reset();
  }
  bool given_up() const { return !aperture_; }

 private:
  RemoteSegment(RemoteAperture aperture, NodeId peer, ChannelTable table)
      : aperture_(std::move(aperture)), peer_(peer), table_(table) {}

  std::optional<RemoteAperture> aperture_;  ///< none: given up
  NodeId peer_;
  ChannelTable table_;
  ChannelView channel_;
};

}  // namespace clan::mpi
