#include "link/udp/transport/receive_channel.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace clan::udp {

// The unreleased message of `frame`, or a new one. Null: it contradicts another.
ReceiveChannel::Incoming* ReceiveChannel::message_of(const Frame& frame) {
  const auto next = incoming_.lower_bound(frame.position);
  if (next != incoming_.end() && next->first == frame.position) {
    Incoming& m = next->second;
    const bool same = m.total == frame.total && m.header_bytes == frame.header.size() &&
                      std::equal(frame.header.begin(), frame.header.end(), m.header.begin());
    return same ? &m : nullptr;
  }
  const std::uint64_t end = frame.position + kHeaderCharge + frame.total;
  if (frame.position < released_) return nullptr;
  if (next != incoming_.begin() && std::prev(next)->second.end > frame.position) return nullptr;
  if (next != incoming_.end() && next->first < end) return nullptr;
  if (spare_.empty()) spare_.push_back(Messages{{0, Incoming()}}.extract(0));
  spare_.back().key() = frame.position;
  Incoming& m = incoming_.insert(std::move(spare_.back())).position->second;
  spare_.pop_back();
  m.end = end;
  m.total = frame.total;
  m.where = Incoming::Where::kUnknown;
  m.header_bytes = static_cast<std::uint8_t>(frame.header.size());
  std::copy(frame.header.begin(), frame.header.end(), m.header.begin());
  return &m;
}

// Passes on or keeps those bytes of the frame that are new. False: too long to be kept.
bool ReceiveChannel::take_new_bytes(Incoming& m, const Frame& frame, MessageSink& sink) {
  const std::uint64_t at = frame.position + kHeaderCharge + frame.offset;
  bool fits = true;
  auto take = [&](std::uint64_t begin, std::uint64_t end) {
    const auto piece = frame.payload.subspan(begin - at, end - begin);
    const auto offset = static_cast<std::uint32_t>(begin - frame.position - kHeaderCharge);
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
    m.kept.resize(m.total);
    std::memcpy(m.kept.data() + offset, piece.data(), piece.size());
  };
  beyond_.for_each_missing(std::max(at, next_), at + frame.payload.size(), take);
  return fits;
}

void ReceiveChannel::release(MessageSink& sink) {
  while (!incoming_.empty() && incoming_.begin()->second.end <= next_) {
    auto first = incoming_.extract(incoming_.begin());
    Incoming& m = first.mapped();
    released_ = m.end;
    sink.on_message(channel_, {m.header.data(), m.header_bytes}, m.total, m.kept);
    m.kept.clear();
    if (m.kept.capacity() > kMostSpare) std::vector<std::byte>().swap(m.kept);
    spare_.push_back(std::move(first));
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
      incoming_.empty()) {  // the common case
    next_ = released_ = end;
    sink.on_message(channel_, frame.header, frame.total, frame.payload);
    if (!beyond_.empty())
      return Outcome::kBroken;  // cannot be: what is beyond belongs to a message in incoming_
    return Outcome::kTaken;
  }

  if (begin > next_ && (beyond_.size() >= kMostGaps || incoming_.size() >= kMostPending))
    return Outcome::kLater;
  Incoming* const m = message_of(frame);
  if (m == nullptr || !take_new_bytes(*m, frame, sink)) return Outcome::kBroken;
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

}  // namespace clan::udp
