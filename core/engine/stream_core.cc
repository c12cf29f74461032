#include "engine/stream_core.h"

namespace clan::engine {

Result<std::size_t> StreamCore::send(std::span<const std::byte> bytes, std::uint64_t deadline_ns) {
  std::size_t sent = 0;
  for (;;) {
    auto n = send_some(bytes.subspan(sent));
    if (!n) {
      if (sent > 0) return sent;
      return n.error();
    }
    sent += *n;
    if (sent == bytes.size()) return sent;
    const std::size_t next = std::min<std::size_t>(bytes.size() - sent, chunk_);
    if (auto s = c_->wait_writable(next, deadline_ns); !s) {
      return sent > 0 ? Result<std::size_t>(sent) : s.error();
    }
  }
}

Result<std::size_t> StreamCore::end() const {
  if (!c_->context().usable()) return unusable_error();
  if (closed_) return Error{EBADF, "the stream has been closed"};
  if (eof_) return std::size_t{0};
  int reason = c_->reset_reason();
  if (reason != 0) return Error{reason, "the connection was reset"};
  return std::size_t{0};  // the peer closed without half-closing first
}

// --- lent bytes -------------------------------------------------------------------------------------

Result<std::size_t> StreamCore::send_lent(std::span<const std::byte> bytes, std::uint64_t deadline_ns) {
  std::size_t sent = 0;
  while (lender_.lends(bytes.size() - sent)) {
    if (!can_send()) return sent > 0 ? Result<std::size_t>(sent) : send_error().error();
    std::size_t taken = 0;
    const Status lent = lender_.lend(bytes.subspan(sent), deadline_ns, &taken);
    sent += taken;
    if (lent) continue;
    if (lent.error().err == EOPNOTSUPP) break;
    if (sent > 0) return sent;
    return lent.error().err == EPIPE ? send_error().error() : lent.error();
  }
  if (sent == bytes.size() && sent > 0) return sent;
  auto rest = send(bytes.subspan(sent), deadline_ns);
  if (!rest) return sent > 0 ? Result<std::size_t>(sent) : rest;
  return sent + *rest;
}

Result<std::size_t> StreamCore::take_lent(std::span<std::byte> buffer) {
  auto taken = borrower_.take(buffer);
  if (!taken) return taken;
  if (*taken > 0) withdrawn_ = 0;
  if (*taken == 0 || borrower_.left() == 0) end_lent();
  return taken;
}

void StreamCore::end_lent() {
  borrower_.end();
  c_->consume(record_);
  record_ = {};
}

Result<bool> StreamCore::fetch_lent() {
  fetched_.resize(std::min<std::size_t>(borrower_.left(), shm::kRingPiece));
  auto taken = take_lent(fetched_);
  if (!taken) return taken.error();
  left_ = *taken;
  front_end_ = fetched_.data() + left_;
  return left_ > 0;
}

}  // namespace clan::engine
