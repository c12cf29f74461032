#include "segment.h"

#include <bit>

namespace clan::mpi {

Result<Segment> Segment::create(Context& context, std::uint32_t channels,
                                std::uint32_t bulk_bytes) {
  auto memory = Memory::allocate(segment_bytes(channels, bulk_bytes));
  if (!memory) return memory.error();
  auto& header = *reinterpret_cast<SegmentHeader*>(memory->data());
  header.magic = kSegmentMagic;
  header.channels = channels;
  header.bulk_bytes = bulk_bytes;
  header.node = context.node().value;
  auto aperture = Aperture::export_memory(context, *memory, 0, memory->size(), Rights::kReadWrite);
  if (!aperture) return aperture.error();
  return Segment(std::move(*memory), std::move(*aperture), channels, bulk_bytes);
}

bool Segment::hears(NodeId node) const {
  for (std::uint32_t i = 0; i < taken(); ++i) {
    // relaxed: only its value counts
    if (channel(i).control->owner.load(std::memory_order_relaxed) == node.value) return true;
  }
  return false;
}

void Segment::give_back(std::uint32_t index) const {
  ChannelControl& control = *channel(index).control;
  control.leaving.store(0, std::memory_order_relaxed);  // relaxed: published by owner
  // PAIR channel.owner: `consumed` and `leaving` are as the next owner needs them
  control.owner.store(0, std::memory_order_release);
}

Result<RemoteSegment> RemoteSegment::take_channel(Context& context, const RdmaCookie& cookie,
                                                  std::uint64_t name, std::int64_t timeout_ms) {
  auto aperture = RemoteAperture::import(context, cookie, timeout_ms);
  if (!aperture) return aperture.error();
  std::byte* base = aperture->data();
  if (base == nullptr) return Error{EPROTO, "the peer's segment cannot be mapped"};
  if (aperture->size() < sizeof(SegmentHeader))
    return Error{EPROTO, "the peer's segment is too small"};
  auto* header = reinterpret_cast<SegmentHeader*>(base);
  const std::uint32_t channels = header->channels;
  const std::uint32_t bulk_bytes = header->bulk_bytes;
  if (header->magic != kSegmentMagic || channels > kMaxChannels ||
      !std::has_single_bit(bulk_bytes) || bulk_bytes < kCacheLine ||
      aperture->size() < segment_bytes(channels, bulk_bytes)) {
    return Error{EPROTO, "the peer's segment is none that this version knows"};
  }
  for (std::uint32_t i = 0; i < channels; ++i) {
    const ChannelView channel = channel_at(base, i, bulk_bytes);
    std::uint64_t nobody = 0;
    // PAIR channel.owner: sees what give_back() has left
    if (!channel.control->owner.compare_exchange_strong(nobody, context.node().value,
                                                        std::memory_order_acq_rel)) {
      continue;
    }
    channel.control->name.store(name, std::memory_order_relaxed);  // relaxed: for people
    // relaxed: the exchange decides
    std::uint32_t taken = header->taken.load(std::memory_order_relaxed);
    // PAIR segment.taken: the channel has its owner
    while (taken <= i &&
           !header->taken.compare_exchange_weak(taken, i + 1, std::memory_order_release)) {
    }
    return RemoteSegment(std::move(*aperture), header, channel);
  }
  return Error{ENOSPC, "all channels of the peer's segment are taken"};
}

void RemoteSegment::leave_channel() {
  // PAIR channel.leaving: the last record precedes it
  channel_.control->leaving.store(1, std::memory_order_release);
}

}  // namespace clan::mpi
