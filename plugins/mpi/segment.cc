#include "segment.h"

#include <algorithm>
#include <bit>

namespace clan::mpi {
namespace {

/// The name of a channel whose reservation ends.
constexpr std::uint64_t kNoName = ~std::uint64_t{0};

bool is_of(const ChannelControl& control, NodeId node) {
  // PAIR channel.owner: sees what give_back() has left
  return control.owner.load(std::memory_order_acquire) == node.value;
}

/// False: another has it, or nobody.
bool take_owner(ChannelControl& control, NodeId node) {
  std::uint64_t nobody = 0;
  // PAIR channel.owner: sees what give_back() has left
  return control.owner.compare_exchange_strong(nobody, node.value, std::memory_order_acq_rel);
}

/// False: the owner's rank has come, or the reservation has ended.
bool take_name(ChannelControl& control, std::uint64_t name) {
  std::uint64_t none = 0;
  // relaxed: the owner's exchange came before, and only the value counts
  return control.name.compare_exchange_strong(none, name, std::memory_order_relaxed);
}

void note_taken(SegmentHeader& header, std::uint32_t index) {
  // relaxed: the exchange decides
  std::uint32_t taken = header.taken.load(std::memory_order_relaxed);
  // PAIR segment.taken: the channel has its owner
  while (taken <= index &&
         !header.taken.compare_exchange_weak(taken, index + 1, std::memory_order_release)) {
  }
}

}  // namespace

Result<Segment> Segment::create(Context& context, std::uint32_t channels, std::uint32_t bulk_bytes,
                                std::uint32_t longest) {
  auto memory = Memory::allocate(segment_bytes(channels, bulk_bytes));
  if (!memory) return memory.error();
  auto& header = *reinterpret_cast<SegmentHeader*>(memory->data());
  header.magic = kSegmentMagic;
  header.channels = channels;
  header.bulk_bytes = bulk_bytes;
  header.node = context.node().value;
  header.longest = longest;
  auto aperture = Aperture::export_memory(context, *memory, 0, memory->size(), Rights::kReadWrite);
  if (!aperture) return aperture.error();
  return Segment(std::move(*memory), std::move(*aperture), channels, bulk_bytes);
}

bool Segment::reserve(NodeId node) const {
  for (std::uint32_t i = 0; i < taken(); ++i) {
    if (is_of(*channel(i).control, node)) return true;
  }
  for (std::uint32_t i = 0; i < channels_; ++i) {
    if (!take_owner(*channel(i).control, node)) continue;
    note_taken(header(), i);
    return true;
  }
  return false;
}

void Segment::release(NodeId node) const {
  for (std::uint32_t i = 0; i < taken(); ++i) {
    if (is_of(*channel(i).control, node) && take_name(*channel(i).control, kNoName)) give_back(i);
  }
}

bool Segment::hears(NodeId node) const {
  for (std::uint32_t i = 0; i < taken(); ++i) {
    const ChannelControl& control = *channel(i).control;
    // relaxed: only its value counts
    const std::uint64_t name = control.name.load(std::memory_order_relaxed);
    if (is_of(control, node) && name != 0 && name != kNoName) return true;
  }
  return false;
}

void Segment::give_back(std::uint32_t index) const {
  ChannelControl& control = *channel(index).control;
  control.name.store(0, std::memory_order_relaxed);     // relaxed: published by owner
  control.leaving.store(0, std::memory_order_relaxed);  // relaxed: likewise
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
  const NodeId own = context.node();
  // PAIR segment.taken: sees the owner of each channel below
  const std::uint32_t taken = std::min(header->taken.load(std::memory_order_acquire), channels);
  for (std::uint32_t i = 0; i < taken; ++i) {
    const ChannelView channel = channel_at(base, i, bulk_bytes);
    if (is_of(*channel.control, own) && take_name(*channel.control, name))
      return RemoteSegment(std::move(*aperture), header, channel);
  }
  for (std::uint32_t i = 0; i < channels; ++i) {
    const ChannelView channel = channel_at(base, i, bulk_bytes);
    if (!take_owner(*channel.control, own) || !take_name(*channel.control, name)) continue;
    note_taken(*header, i);
    return RemoteSegment(std::move(*aperture), header, channel);
  }
  return Error{ENOSPC, "all channels of the peer's segment are taken"};
}

void RemoteSegment::leave_channel() {
  // PAIR channel.leaving: the last record precedes it
  channel_.control->leaving.store(1, std::memory_order_release);
}

}  // namespace clan::mpi
