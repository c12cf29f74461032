#include "engine/connection/stream_core.h"

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

}  // namespace clan::engine
