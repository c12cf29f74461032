// What a VI keeps of descriptors and of its peer: plain data, under the VI's lock.
#pragma once

#include <clan/aperture.h>
#include <clan/stream.h>
#include <vipl.h>

#include <array>
#include <memory>
#include <vector>

#include "fifo.h"
#include "provider.h"
#include "wire.h"

namespace clan::via {

/// A posted descriptor. All but the slots are on one line.
struct alignas(64) Work {
  VIP_DESCRIPTOR* descriptor = nullptr;
  VIP_MEM_HANDLE handle = 0;   ///< of the memory the descriptor lies in
  std::uint32_t changes = 0;   ///< of memory, before its segments were checked
  std::uint32_t bad = 0;       ///< receive: the status that it ends with, whatever comes
  std::uint64_t space = 0;     ///< receive: bytes of its segments
  std::uint64_t counted = 0;   ///< receive: these, if the peer knows only a count
  std::uint32_t segments = 0;  ///< receive: the peer knows these,
  std::array<std::uint32_t, kMostSegments> slots;  ///< and where they lie
};

/// Descriptors in the order of posting: those that are complete are at the front.
struct WorkQueue {
  Fifo<Work> posted;
  std::size_t completed = 0;
  Cq* cq = nullptr;
  NotifierPtr notifier;
};

/// Memory of this process that the peer knows, because receives lie in it.
struct Slot {
  std::uint32_t users = 0;  ///< posted segments in it
  VIP_MEM_HANDLE handle = 0;
  std::byte* base = nullptr;       ///< of the memory
  std::optional<Aperture> strict;  ///< an export of one segment alone
};

/// Longer messages go by RDMA, unless the program says otherwise.
constexpr std::uint32_t kCopyLimit = 16384;
/// The most copied data on their way, to buffers that have been described and to others: so the
/// ring always has room for records (context.h: 512 KB).
constexpr std::uint32_t kMostCopied = 96 * 1024;

/// Which receives the peer knows only by their count.
struct Counting {
  static constexpr std::uint64_t kNoUsualSpace = ~0ull;
  bool is_enough = false;                     ///< for receives of the usual size
  std::uint64_t usual_space = kNoUsualSpace;  ///< of the receive described last
  std::uint64_t space = 0;                    ///< of receives that are only counted
  std::uint32_t posted = 0;                   ///< receives that the peer knows
  bool suffices_for(std::uint64_t bytes) const {
    return is_enough && bytes == usual_space && space + bytes <= kMostCopied;
  }
};

/// Memory of the peer, by slot, from its Region records.
struct PeerSlot {
  RdmaCookie cookie;
  std::shared_ptr<RemoteAperture> remote;  ///< once it has been used
};

/// A buffer of the peer that it has described.
struct PeerBuffer {
  std::uint32_t number = 0;  ///< how many it had posted before
  std::uint32_t segments = 0, space = 0;
  std::array<Piece, kMostSegments> pieces;
};

/// Receives that the peer has posted, in order, and the memory they lie in: its cookie queue.
struct PeerBuffers {
  std::vector<PeerSlot> slots;
  /// Those that are free.
  std::uint32_t size() const { return posted_ - taken_; }
  bool empty() const { return size() == 0; }
  /// The space of the i-th; if that has not been described, the space of the last described before
  /// it.
  std::uint32_t space(std::uint32_t i) {
    const PeerBuffer* const buffer = described(i);
    return buffer == nullptr ? usual_space_ : buffer->space;
  }
  /// Null: it has not been.
  const PeerBuffer* described(std::uint32_t i) {
    return i < described_.size() && described_[i].number == taken_ + i ? &described_[i] : nullptr;
  }
  void take();
  /// The peer has posted so many, modulo 2^16. False: it cannot have.
  bool learn(std::uint16_t posted);
  /// Takes a Region or Buffer record. False: it makes no sense.
  bool arrive(std::span<const std::byte> record);
  /// Takes those that come before Hello or Answer; EAGAIN: that has not come. Another error: the
  /// peer has gone, or is no VI.
  Status meet(Stream& stream);

 private:
  bool arrive_region(std::span<const std::byte> record);
  bool arrive_buffer(std::span<const std::byte> record);
  std::uint32_t posted_ = 0, taken_ = 0;  ///< since they were connected
  std::uint32_t usual_space_ = 0;
  Fifo<PeerBuffer> described_;
};

/// A registration of the peer's, for RDMA.
struct PeerMemory {
  std::uint64_t base = 0;  ///< its address there
  Rights rights = Rights::kNone;
  std::shared_ptr<RemoteAperture> memory;
};

class SegmentWalk;

/// A send whose RDMA is under way.
struct Flight {
  std::uint32_t requests = 0;
  int error = 0;                       ///< errno of the first that failed
  std::vector<MessageRecord> records;  ///< for the peer, one for each descriptor it fills
  std::size_t told = 0;                ///< of them
  std::vector<std::shared_ptr<RemoteAperture>> remotes;
};

inline void add(std::atomic<std::uint64_t>& counter, std::uint64_t more) {
  // relaxed: for people; one writer, under the VI's lock
  counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

/// Where the data segments of a descriptor are.
inline std::uint32_t first_segment(const VIP_DESCRIPTOR& d) {
  return (d.CS.Control & VIP_CONTROL_OP_MASK) == VIP_CONTROL_OP_SENDRECV ? 0 : 1;
}
inline std::uint32_t op_of_send(const VIP_DESCRIPTOR& d) {
  switch (d.CS.Control & VIP_CONTROL_OP_MASK) {
    case VIP_CONTROL_OP_RDMAWRITE: return VIP_STATUS_OP_RDMA_WRITE;
    case VIP_CONTROL_OP_RDMAREAD: return VIP_STATUS_OP_RDMA_READ;
    default: return VIP_STATUS_OP_SEND;
  }
}

}  // namespace clan::via
