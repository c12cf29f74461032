#include "link/udp/transport/receive_channel.h"

#include <algorithm>
#include <cstring>

namespace clan::udp {

// The message of `frame` among those that are not released, or where it belongs. False: it overlaps
// another.
bool ReceiveChannel::find(const Frame& frame, std::size_t* index, bool* known) const {
  std::size_t low = 0, high = order_.size();
  while (low < high) {  // the first that begins at or after the frame's
    const std::size_t middle = (low + high) / 2;
    if (incoming_[order_[middle]].position < frame.position) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  *index = low;
  *known = low < order_.size() && incoming_[order_[low]].position == frame.position;
  if (*known) return true;
  if (frame.position < released_) return false;
  if (low > 0 && incoming_[order_[low - 1]].end() > frame.position) return false;
  return low == order_.size() ||
         incoming_[order_[low]].position >= frame.position + kHeaderCharge + frame.total;
}

bool ReceiveChannel::matches(const Incoming& m, const Frame& frame) const {
  return m.total == frame.total && m.header_bytes == frame.header.size() &&
         std::equal(frame.header.begin(), frame.header.end(), m.header.begin());
}

ReceiveChannel::Incoming& ReceiveChannel::add(std::size_t index, const Frame& frame) {
  std::uint32_t slot;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else {
    slot = static_cast<std::uint32_t>(incoming_.size());
    incoming_.emplace_back();
  }
  Incoming& m = incoming_[slot];
  m.position = frame.position;
  m.total = frame.total;
  m.where = Incoming::Where::kUnknown;
  m.header_bytes = static_cast<std::uint8_t>(frame.header.size());
  std::copy(frame.header.begin(), frame.header.end(), m.header.begin());
  m.kept.clear();
  order_.insert(index, slot);
  return m;
}

// Passes on or keeps those bytes of the frame that have not come before. False: too long to be
// kept.
bool ReceiveChannel::take_new_bytes(Incoming& m, const Frame& frame, MessageSink& sink) {
  const std::uint64_t at = m.position + kHeaderCharge + frame.offset;
  bool fits = true;
  auto take = [&](std::uint64_t begin, std::uint64_t end) {
    const auto piece = frame.payload.subspan(begin - at, end - begin);
    const auto offset = static_cast<std::uint32_t>(begin - m.position - kHeaderCharge);
    if (m.where != Incoming::Where::kKept &&
        sink.on_fragment(channel_, {m.header.data(), m.header_bytes}, m.total, offset, piece)) {
      m.where = Incoming::Where::kPlaced;
      return;
    }
    if (m.where == Incoming::Where::kPlaced) return;  // the link had a reason and knows it
    m.where = Incoming::Where::kKept;
    if (m.total > kMostKept) {
      fits = false;
      return;
    }
    if (m.kept.size() != m.total) {
      m.kept.resize(m.total);
      kept_bytes_ += m.total;
    }
    std::memcpy(m.kept.data() + offset, piece.data(), piece.size());
  };
  beyond_.for_each_missing(std::max(at, next_), at + frame.payload.size(), take);
  return fits;
}

void ReceiveChannel::release(MessageSink& sink) {
  while (!order_.empty()) {
    const std::uint32_t slot = order_.front();
    if (incoming_[slot].end() > next_) return;
    order_.pop_front();
    Incoming& m = incoming_[slot];
    released_ = m.end();
    sink.on_message(channel_, {m.header.data(), m.header_bytes}, m.total, m.kept);
    kept_bytes_ -= m.kept.size();
    m.kept.clear();
    if (m.kept.capacity() > kMostSpare) std::vector<std::byte>().swap(m.kept);
    free_.push_back(slot);
  }
}

ReceiveChannel::Outcome ReceiveChannel::receive(const Frame& frame, MessageSink& sink) {
  const std::uint64_t message_end = frame.position + kHeaderCharge + frame.total;
  const std::uint64_t payload_at = frame.position + kHeaderCharge;
  const std::uint64_t begin = frame.offset == 0 ? frame.position : payload_at + frame.offset;
  const std::uint64_t end = payload_at + frame.offset + frame.payload.size();
  if (end > limit_ || (frame.payload.empty() && frame.total != 0)) return Outcome::kBroken;
  if (end <= next_) return Outcome::kTaken;  // all of it has been here

  if (frame.position == next_ && frame.offset == 0 && end == message_end &&
      order_.empty()) {  // the common case
    next_ = released_ = end;
    sink.on_message(channel_, frame.header, frame.total, frame.payload);
    if (!beyond_.empty())
      return Outcome::kBroken;  // cannot be: what is beyond belongs to a message in order_
    return Outcome::kTaken;
  }

  std::size_t index;
  bool known;
  if (!find(frame, &index, &known)) return Outcome::kBroken;
  if (known && !matches(incoming_[order_[index]], frame)) return Outcome::kBroken;
  if (begin > next_ && (beyond_.size() >= kMostGaps || (!known && order_.size() >= kMostPending))) {
    return Outcome::kLater;
  }
  Incoming& m = known ? incoming_[order_[index]] : add(index, frame);
  if (!take_new_bytes(m, frame, sink)) return Outcome::kBroken;
  if (begin <= next_) {
    next_ = end;
    while (!beyond_.empty() && beyond_.front().begin <= next_) {
      next_ = std::max(next_, beyond_.front().end);
      beyond_.remove_below(next_);
    }
    release(sink);
  } else {
    beyond_.add(begin, end);
  }
  return Outcome::kTaken;
}

std::size_t ReceiveChannel::memory_bytes() const {
  std::size_t bytes = incoming_.capacity() * sizeof(Incoming) +
                      order_.capacity() * sizeof(std::uint32_t) +
                      free_.capacity() * sizeof(std::uint32_t) + beyond_.memory_bytes();
  for (const Incoming& m : incoming_) bytes += m.kept.capacity();
  return bytes;
}

void ReceiveChannel::release_memory() {
  if (!order_.empty()) return;
  std::vector<Incoming>().swap(incoming_);
  std::vector<std::uint32_t>().swap(free_);
  order_.release_memory();
  beyond_.release_memory();
}

}  // namespace clan::udp
