#include "segment.h"

#include <clan/detail/dekker.h>
#include <clan/detail/words.h>

#include <algorithm>
#include <bit>

namespace clan::mpi {

Result<Segment> Segment::create(Context& context, std::uint32_t channels, std::uint32_t bulk_bytes,
                                std::uint32_t longest) {
  auto memory = Memory::allocate(segment_bytes(channels, bulk_bytes));
  if (!memory) return memory.error();
  auto& header = *reinterpret_cast<SegmentHeader*>(memory->data());
  header.magic = kSegmentMagic;
  header.channels = channels;
  header.bulk_bytes = bulk_bytes;
  header.longest = longest;
  auto aperture = Aperture::export_memory(context, *memory, 0, memory->size(), Rights::kReadWrite);
  if (!aperture) return aperture.error();
  return Segment(std::move(*memory), std::move(*aperture), channels, bulk_bytes);
}

void ChannelTable::use(std::uint32_t index) const {
  // PAIR segment.taken: as below, where another has been faster
  std::uint32_t taken = dekker::load(header().taken);
  // PAIR segment.taken: the channel has its owner
  while (taken <= index && !dekker::cas(header().taken, taken, index + 1)) {
  }
}

void Segment::forget(NodeId node) const {
  free_unused(table_, node);
  for (std::uint32_t i = 0; i < taken(); ++i) {
    ChannelControl& control = *channel(i).control;
    // PAIR channel.owner: what it sent is there
    const std::uint64_t word = dekker::load(control.owner);
    if (is_for(word, node, ChannelState::kTaken))
      words::store_release(control.leaving, 1);  // PAIR channel.leaving: in its place
  }
}

bool Segment::hears(NodeId node) const {
  for (std::uint32_t i = 0; i < taken(); ++i) {
    // relaxed: only its value counts
    const std::uint64_t word = channel(i).control->owner.load(std::memory_order_relaxed);
    if (is_for(word, node, ChannelState::kTaken)) return true;
  }
  return false;
}

void Segment::give_back(std::uint32_t index) const {
  ChannelControl& control = *channel(index).control;
  control.name.store(0, std::memory_order_relaxed);  // relaxed: published by owner
  control.leaving.store(0, std::memory_order_relaxed);  // relaxed: the same
  // PAIR channel.owner: `consumed` and `leaving` are as the next owner needs them
  words::store_release(control.owner, 0);
}

Result<RemoteSegment> RemoteSegment::import(Context& context, const RdmaCookie& cookie,
                                            std::int64_t timeout_ms) {
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
  return RemoteSegment(std::move(*aperture), cookie.node, ChannelTable(base, channels, bulk_bytes));
}

bool RemoteSegment::meet(const Segment& own, std::uint64_t name) {
  const auto index = meet_both_ways(own.table(), own.node(), table_, peer_);
  if (!index) return false;
  channel_ = table_.channel(*index);
  channel_.control->name.store(name, std::memory_order_relaxed);  // relaxed: for people
  return true;
}

void RemoteSegment::leave_channel() {
  // PAIR channel.leaving: the last record precedes it
  words::store_release(channel_.control->leaving, 1);
}

}  // namespace clan::mpi
