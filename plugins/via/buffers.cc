// Posted receives: what the peer learns about them (the paper's cookie queue, via-over-clan 3.3.2).
//
// Where a count says enough (wire.h), nothing is written. Otherwise memory is announced once, as a
// slot, and buffers by slot and offset. With strict protection (3.8) each segment is an export of
// its own, which ends before its descriptor completes.
#include <algorithm>
#include <utility>

#include "segments.h"
#include "vi.h"

namespace clan::via {

/// What is written for one buffer, and a Hello or Answer behind it.
constexpr std::size_t kMostTold = 2048;

// Bytes of a segment that lie in its memory; 0: not even the first does, or the tag is another's.
inline std::uint32_t Vi::usable(const VIP_DATA_SEGMENT& segment) const {
  const Region* const region = memory.find(segment.Handle);
  if (region == nullptr || !covers(*region, segment.Data.Address, 1) ||
      (region->tag != nullptr && attributes.Ptag != nullptr && region->tag != attributes.Ptag)) {
    return 0;
  }
  const auto* const address = static_cast<const std::byte*>(segment.Data.Address);
  const auto there = static_cast<std::uint64_t>(region->base + region->length - address);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(segment.Length, there));
}

std::uint32_t Vi::check_segments(const VIP_DESCRIPTOR& descriptor, std::uint32_t first,
                                 std::uint64_t* bytes) const {
  *bytes = 0;
  const std::uint32_t count = descriptor.CS.SegCount;
  if (count < first || count > kMostSegments) return VIP_STATUS_FORMAT_ERROR;
  for (std::uint32_t i = first; i < count; ++i) {
    const VIP_DATA_SEGMENT& segment = segment_of(descriptor, i).Local;
    if (segment.Length > 0 && usable(segment) < segment.Length) return VIP_STATUS_PROTECTION_ERROR;
    *bytes += segment.Length;
  }
  return *bytes > attributes.MaxTransferSize ? VIP_STATUS_LENGTH_ERROR : 0;
}

// The last segment of a receive may end behind its memory: what lies there is not used. ARMCI posts
// such, for messages that are short.
std::uint32_t Vi::check_receive(const VIP_DESCRIPTOR& descriptor, std::uint64_t* space) const {
  *space = 0;
  const std::uint32_t count = descriptor.CS.SegCount;
  if (count > kMostSegments) return VIP_STATUS_FORMAT_ERROR;
  for (std::uint32_t i = 0; i < count; ++i) {
    const VIP_DATA_SEGMENT& segment = segment_of(descriptor, i).Local;
    const std::uint32_t bytes = segment.Length == 0 ? 0 : usable(segment);
    if (segment.Length > 0 && (bytes == 0 || (bytes < segment.Length && i + 1 < count)))
      return VIP_STATUS_PROTECTION_ERROR;
    *space += bytes;
  }
  return 0;
}

// False, and of tell_buffer(): there is no room now.
bool Vi::tell_next() {
  if (!connected && !stream->reserve(kMostTold)) return false;
  Work& work = receives.posted[told];
  if (told >= receives.completed && work.bad == 0) {
    work.counted = counting.suffices_for(work.space) ? work.space : 0;
    if (work.counted == 0 && !tell_buffer(work)) return false;
    counting.space += work.counted;
    ++counting.posted;
    if (own_count != nullptr) words::store_release(*own_count, counting.posted);
  }
  ++told;
  return true;
}

bool Vi::tell_buffer(Work& work) {
  const VIP_DESCRIPTOR& d = *work.descriptor;
  const std::uint32_t count = d.CS.SegCount;
  struct {
    BufferRecord head;
    Piece pieces[kMostSegments];
  } record;
  record.head = {.segments = static_cast<std::uint8_t>(count),
                 .posted = static_cast<std::uint16_t>(counting.posted + 1),
                 .drained = drained};
  std::uint64_t left = work.space;  // the last segment may be longer
  std::uint64_t space = 0;
  bool told_all = true;
  for (std::uint32_t& i = work.segments = 0; i < count && told_all; ++i) {
    const VIP_DATA_SEGMENT& segment = segment_of(d, i).Local;
    Piece& piece = record.pieces[i];
    piece = {0, static_cast<std::uint32_t>(std::min<std::uint64_t>(segment.Length, left)), kNoSlot};
    left -= piece.bytes;
    told_all = piece.bytes == 0 || tell_slot(segment, &piece);
    work.slots[i] = piece.slot;
    space += piece.bytes;
  }
  const auto bytes =
      std::as_bytes(std::span(&record, 1)).first(sizeof record.head + count * sizeof(Piece));
  // A thread there waits for a message, and not for a buffer, but where sends do.
  told_all =
      told_all && (theirs.defers ? stream->append(bytes) : stream->append_quietly(bytes)).ok();
  if (!told_all) {
    take_back(work);
  } else {
    // Those of which the peer has to know where they lie are described each.
    counting.usual_space = space <= theirs.copy_limit ? space : Counting::kNoUsualSpace;
  }
  return told_all;
}

// The count first: what it counts, and has to be described, is in the ring by then.
void Vi::look_for_buffers() {
  const std::uint32_t now = their_count == nullptr ? 0 : words::load_acquire(*their_count);
  drain();
  if (connected && their_count != nullptr) (void)buffers.learn(static_cast<std::uint16_t>(now));
}

// The slot of a segment's memory, which the peer knows then. False: there is no room, or none can
// be made; none of memory that has gone meanwhile.
bool Vi::tell_slot(const VIP_DATA_SEGMENT& segment, Piece* piece) {
  const bool strict = options.StrictProtection != 0;
  if (!strict && (last_slot == kNoSlot || slots[last_slot].handle != segment.Handle)) {
    const auto known = slot_of.find(segment.Handle);
    last_slot = known == slot_of.end() ? kNoSlot : known->second;
  }
  if (strict || last_slot == kNoSlot) {
    Region* const region = memory.find(segment.Handle);
    if (region == nullptr) {
      piece->bytes = 0;
      return true;
    }
    if (!add_slot(*region, segment, piece->bytes)) return false;
  }
  Slot& slot = slots[last_slot];
  ++slot.users;
  piece->slot = last_slot;
  piece->offset =
      static_cast<std::uint64_t>(static_cast<std::byte*>(segment.Data.Address) - slot.base);
  return true;
}

bool Vi::add_slot(Region& region, const VIP_DATA_SEGMENT& segment, std::uint32_t bytes) {
  Provider& process = *provider();
  const bool strict = options.StrictProtection != 0;
  auto* const address = static_cast<std::byte*>(segment.Data.Address);
  std::optional<Aperture> own;
  RegionRecord record;
  if (strict) {
    auto made = Aperture::export_region(process.context, {address, bytes}, Rights::kWrite);
    if (!made) return false;
    record.cookie = made->cookie();
    own = std::move(*made);
  } else {
    std::lock_guard lock(memory.mutex());
    if (!region.receive) {
      auto made =
          Aperture::export_region(process.context, {region.base, region.length}, Rights::kWrite);
      if (!made) return false;
      region.receive = std::move(*made);
    }
    record.cookie = region.receive->cookie();
  }
  if (free_slots.empty()) {
    free_slots.push_back(static_cast<std::uint32_t>(slots.size()));
    slots.emplace_back();
  }
  record.slot = free_slots.back();
  if (!stream->append_quietly(std::as_bytes(std::span(&record, 1)))) return false;
  free_slots.pop_back();
  last_slot = record.slot;
  slots[last_slot] = {0, segment.Handle, strict ? address : region.base, std::move(own)};
  if (!strict) slot_of[segment.Handle] = last_slot;
  return true;
}

// One segment fewer lies in the slot. It is free when its memory is no more, or was this one's.
void Vi::let_go(std::uint32_t slot_number) {
  if (slot_number >= slots.size()) return;
  Slot& slot = slots[slot_number];
  if (--slot.users > 0) return;
  if (!slot.strict && memory.find(slot.handle) != nullptr) return;
  if (!slot.strict) slot_of.erase(slot.handle);
  if (last_slot == slot_number) last_slot = kNoSlot;
  slot.strict.reset();  // revokes: no write of the peer is seen in the buffer behind it
  free_slots.push_back(slot_number);
}

void Vi::take_back(Work& work) {
  counting.space -= std::exchange(work.counted, 0);
  for (std::uint32_t i = 0; i < work.segments; ++i) let_go(work.slots[i]);
  work.segments = 0;
}

}  // namespace clan::via
