#include "link/udp/transport/send_channel.h"

#include <algorithm>

namespace clan::udp {
namespace {

constexpr std::size_t kLeastPiece = 256;       ///< smaller ones wait for the next packet
constexpr std::size_t kKeepOwned = 16 * 1024;  ///< copies up to this keep their memory for the next

}  // namespace

void SendChannel::push(const Message& message) {
  Outgoing& m = messages_.push_back();
  m.position = end_;
  m.token = message.token;
  m.notify = message.notify;
  m.kept = message.kept;
  m.total = static_cast<std::uint32_t>(message.payload.size());
  m.header_bytes = static_cast<std::uint8_t>(message.header.size());
  std::copy(message.header.begin(), message.header.end(), m.header.begin());
  if (m.owned.capacity() > kKeepOwned) std::vector<std::byte>().swap(m.owned);
  m.payload = message.payload.data();
  if (message.copy) {
    m.owned.assign(message.payload.begin(), message.payload.end());
    m.payload = m.owned.data();
  }
  end_ = m.end();
}

std::size_t SendChannel::index_of(std::uint64_t position) const {
  std::size_t low = 0, high = messages_.size();
  while (high - low > 1) {
    const std::size_t middle = (low + high) / 2;
    (messages_[middle].position <= position ? low : high) = middle;
  }
  return low;
}

// Positions [from, to) of one message, as far as they fit.
bool SendChannel::write_piece(Writer& out, const Outgoing& m, std::uint64_t from, std::uint64_t to,
                              bool alone, Range* carried) const {
  const std::uint64_t payload_at = m.position + kHeaderCharge;
  const std::uint64_t offset = from <= payload_at ? 0 : from - payload_at;
  if (to < payload_at) return false;
  std::uint64_t bytes = std::min<std::uint64_t>(m.total, to - payload_at) - offset;
  const bool whole = offset == 0 && bytes == m.total && bytes <= 0xffff &&
                     kWholeFrame + m.header_bytes + bytes <= out.left();
  if (!whole) {
    const std::size_t fixed = kFragmentFrame + m.header_bytes;
    if (out.left() <= fixed) return false;
    const std::uint64_t room = std::min<std::uint64_t>(out.left() - fixed, 0xffff);
    if (bytes > room) {
      // A message that would fit into a packet of its own is not cut to fill this one.
      if (!alone && (room < kLeastPiece || m.total < kBasePacket - kDataHeader - kTagBytes - fixed))
        return false;
      bytes = room;
    }
    if (bytes == 0 && m.total != 0) return false;
  }
  out.number(static_cast<std::uint8_t>(whole ? FrameType::kData : FrameType::kFragment));
  out.number(channel_);
  out.number(static_cast<std::uint16_t>(bytes));
  out.number(m.header_bytes);
  out.number(m.position);
  if (!whole) {
    out.number(m.total);
    out.number(static_cast<std::uint32_t>(offset));
  }
  out.bytes({m.header.data(), m.header_bytes});
  out.bytes({m.payload + offset, static_cast<std::size_t>(bytes)});
  *carried = {offset == 0 ? m.position : from, payload_at + offset + bytes};
  return true;
}

bool SendChannel::write_frame(Writer& out, bool alone, Range* carried) {
  if (!lost_.empty()) {
    const Range range = lost_.front();
    if (!write_piece(out, messages_[index_of(range.begin)], range.begin, range.end, alone, carried))
      return false;
    lost_.remove(carried->begin, carried->end);
    return true;
  }
  if (!new_ready()) return false;
  const Outgoing& m = messages_[next_index_];
  if (!write_piece(out, m, next_, std::min(m.end(), limit_), alone, carried)) return false;
  next_ = carried->end;
  if (next_ == m.end()) ++next_index_;
  return true;
}

void SendChannel::on_lost(const Range& range) {
  acked_.for_each_missing(
      std::max(range.begin, acked_through_), range.end,
      [this](std::uint64_t begin, std::uint64_t end) { lost_.add(begin, end); });
}

void SendChannel::detach(std::optional<std::uint64_t> token) {
  for (std::size_t i = 0; i < messages_.size(); ++i) {
    if (!token || (messages_[i].notify && messages_[i].token == *token)) messages_[i].detach();
  }
}

void SendChannel::release_memory() {
  if (!messages_.empty()) return;
  messages_.release_memory();
  lost_.release_memory();
  acked_.release_memory();
}

}  // namespace clan::udp
