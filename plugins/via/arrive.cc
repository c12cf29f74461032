// What the peer says, record by record. All of it is input.
#include <cstring>

#include "segments.h"
#include "vi.h"

namespace clan::via {
namespace {

template <typename T>
bool copy_head(std::span<const std::byte> record, T* head) {
  if (record.size() < sizeof *head) return false;
  std::memcpy(static_cast<void*>(head), record.data(), sizeof *head);
  return true;
}

}  // namespace

Status PeerBuffers::meet(Stream& stream) {
  for (;;) {
    const auto record = stream.peek();
    if (!record) return record.error();
    if (record->empty()) return Error{ECONNRESET, "the peer has given up"};
    const Kind kind = static_cast<Kind>(record->front());
    if (kind != Kind::kRegion && kind != Kind::kBuffer) return {};
    const std::size_t bytes = record->size();
    if (!arrive(*record)) return Error{EPROTO, "a record that no VI sends"};
    stream.consume(bytes);
  }
}

bool PeerBuffers::arrive(std::span<const std::byte> record) {
  return static_cast<Kind>(record.front()) == Kind::kRegion ? arrive_region(record)
                                                            : arrive_buffer(record);
}

bool PeerBuffers::arrive_region(std::span<const std::byte> record) {
  RegionRecord region;
  // A new slot follows the last one: a peer cannot make the table long by naming one slot.
  if (!copy_head(record, &region) || region.slot > slots.size() || region.slot >= kMostSlots) {
    return false;
  }
  if (region.slot == slots.size()) slots.emplace_back();
  slots[region.slot] = {region.cookie, nullptr};
  return true;
}

bool PeerBuffers::learn(std::uint16_t posted) {
  // What is learned from a record may be older than what the count has said.
  const auto more = static_cast<std::int16_t>(posted - static_cast<std::uint16_t>(posted_));
  if (more <= 0) return true;
  if (size() + static_cast<std::uint32_t>(more) > kMostDescriptors) return false;
  posted_ += static_cast<std::uint32_t>(more);
  return true;
}

void PeerBuffers::take() {
  if (const PeerBuffer* const buffer = described(0)) {
    usual_space_ = buffer->space;
    described_.pop();
  }
  ++taken_;
}

bool PeerBuffers::arrive_buffer(std::span<const std::byte> record) {
  BufferRecord head;
  const std::uint32_t before = posted_;
  if (!copy_head(record, &head) || head.segments > kMostSegments ||
      record.size() != sizeof head + head.segments * sizeof(Piece) || !learn(head.posted) ||
      posted_ == before) {
    return false;
  }
  PeerBuffer& buffer = described_.push();
  buffer.number = posted_ - 1;
  buffer.segments = head.segments;
  std::uint64_t space = 0;
  for (std::uint32_t i = 0; i < buffer.segments; ++i) {
    Piece& piece = buffer.pieces[i];
    std::memcpy(&piece, record.data() + sizeof head + i * sizeof piece, sizeof piece);
    if (piece.bytes == 0) continue;
    space += piece.bytes;
    if (piece.slot >= slots.size()) return false;
    const std::uint64_t there = slots[piece.slot].cookie.length;
    if (piece.offset > there || piece.bytes > there - piece.offset) return false;
  }
  buffer.space = static_cast<std::uint32_t>(std::min<std::uint64_t>(space, ~0u));
  return true;
}

void Vi::drain(Until until) {
  const Status s = read_records(until);
  if (s || !connected) return;
  break_off(s.error().err == EPROTO ? VIP_ERROR_CATASTROPHIC : VIP_ERROR_CONN_LOST);
}

Status Vi::read_records(Until until) {
  const std::size_t before = receives.completed;
  while (connected && (until == Until::kEmpty || receives.completed == before)) {
    const auto record = stream->peek();
    if (!record) return record.error().err == EAGAIN ? Status() : record.error();
    if (record->empty()) return Error{ECONNRESET, "the peer has disconnected"};
    const std::size_t bytes = record->size();
    const bool makes_sense = arrive(*record);
    if (!connected) return {};
    stream->consume(bytes);
    if (makes_sense) continue;
    provider()->page->hostile.fetch_add(1, std::memory_order_relaxed);  // relaxed: for people
    return Error{EPROTO, "a record that no VI sends"};
  }
  return {};
}

[[gnu::always_inline]] inline bool Vi::arrive(std::span<const std::byte> record) {
  switch (static_cast<Kind>(record.front())) {
    case Kind::kRegion: return buffers.arrive(record);
    case Kind::kBuffer: {
      BufferRecord head;
      return copy_head(record, &head) && arrive_drained(head.drained) && buffers.arrive(record);
    }
    case Kind::kMessage: return arrive_message(record);
    case Kind::kFailure: {
      FailureRecord failure;
      if (!copy_head(record, &failure) || failure.code > VIP_ERROR_CATASTROPHIC) return false;
      break_off(static_cast<VIP_ERROR_CODE>(failure.code));
      return true;
    }
    default: return false;
  }
}

// The peer can only have taken what was sent.
bool Vi::arrive_drained(std::uint32_t theirs_drained) {
  if (theirs_drained - copied_drained > copied - copied_drained) return false;
  copied_drained = theirs_drained;
  return true;
}

[[gnu::always_inline]] inline bool Vi::arrive_message(std::span<const std::byte> record) {
  MessageRecord head;
  if (!copy_head(record, &head) || receives.completed == receives.posted.size() ||
      told <= receives.completed || !arrive_drained(head.drained) || !buffers.learn(head.posted)) {
    return false;
  }
  const std::span<const std::byte> data = record.subspan(sizeof head);
  const bool is_copied = (head.flags & MessageRecord::kCopied) != 0;
  const bool too_long = (head.flags & MessageRecord::kTooLong) != 0;
  const bool written = (head.flags & MessageRecord::kRdmaWrite) != 0;
  if (data.size() != (is_copied ? head.length : 0)) return false;
  const Work& work = receives.posted[receives.completed];
  VIP_DESCRIPTOR& d = *work.descriptor;
  if (is_copied) drained += head.length;
  if (!is_there(work)) {  // it may not even be mapped
    complete(receives, VIP_STATUS_PROTECTION_ERROR, 0);
    return true;
  }
  std::uint32_t status = written ? VIP_STATUS_OP_REMOTE_RDMA_WRITE : VIP_STATUS_OP_RECEIVE;
  std::uint64_t space = work.space;
  const std::uint32_t wrong = work.changes == memory.changes() ? 0 : check_receive(d, &space);
  if (wrong != 0) {
    status |= wrong;  // its memory is not registered any more
  } else if (too_long) {
    status |= VIP_STATUS_LENGTH_ERROR;
  } else if (!written && head.length > space) {
    return false;
  } else if (is_copied) {
    SegmentWalk(d, 0).scatter(data.data(), data.size());
  }
  if ((head.flags & MessageRecord::kImmediate) != 0) {
    d.CS.ImmediateData = head.immediate;
    status |= VIP_STATUS_IMMEDIATE;
  }
  d.CS.Reserved = (head.flags & MessageRecord::kContinues) != 0;
  add(row->received, 1);
  add(row->received_bytes, head.length);
  complete(receives, status, too_long ? 0 : head.length);
  return true;
}

}  // namespace clan::via
