#include "clan/zero_copy.h"

#include <algorithm>

#include "clan/clock.h"
#include "engine/context_core.h"

namespace clan {
namespace {

// A record of the transfer queue.
struct TransferRecord {
  std::uint64_t id = 0;
  std::uint64_t length = 0;
  std::uint32_t status = 0;  ///< errno
  std::uint32_t reserved = 0;
};

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

std::int64_t ms_left(std::uint64_t deadline_ns) {
  if (deadline_ns == kNoDeadline) return -1;
  const std::uint64_t now = monotonic_ns();
  return now >= deadline_ns ? 0
                            : static_cast<std::int64_t>((deadline_ns - now + 999'999) / 1'000'000);
}

}  // namespace

// --- CookieReceiver ------------------------------------------------------------------------------

Result<CookieReceiver> CookieReceiver::create(Context& context, const QueueOptions& options) {
  auto queue = QueueSender::create(context, options);
  if (!queue) return queue.error();
  return CookieReceiver(context.core(), std::move(*queue), options);
}

Status CookieReceiver::attach(const RdmaCookie& ring, std::int64_t timeout_ms) {
  return queue_.attach(ring, timeout_ms);
}

Status CookieReceiver::post(std::span<std::byte> buffer, std::uint64_t id) {
  if (posted_.contains(id)) return Error{EEXIST, "a buffer is posted under this id already"};
  // Room first: an export that nobody hears of would be for nothing.
  auto room = queue_.reserve(sizeof(PostedBuffer));
  if (!room) return room.error();
  auto aperture = Aperture::export_region(context_, buffer, Rights::kWrite, options_.peers_uid);
  if (!aperture) return aperture.error();
  const PostedBuffer record{aperture->cookie(), id};
  std::memcpy(room->data(), &record, sizeof record);
  if (auto s = queue_.commit(sizeof record); !s) return s;
  posted_.emplace(id, std::move(*aperture));
  return {};
}

Result<std::span<std::byte>> CookieReceiver::take_back(std::uint64_t id) {
  auto it = posted_.find(id);
  if (it == posted_.end()) return Error{ENOENT, "no buffer is posted under this id"};
  const std::span<std::byte> buffer = it->second.region();
  // Waits for copies under way: a write that comes later finds the cookie stale.
  if (auto s = it->second.revoke(); !s && s.error().err != ESHUTDOWN) return s.error();
  posted_.erase(it);
  return buffer;
}

std::span<std::byte> CookieReceiver::find(std::uint64_t id) const {
  auto it = posted_.find(id);
  return it == posted_.end() ? std::span<std::byte>() : it->second.region();
}

// --- CookieSender --------------------------------------------------------------------------------

Result<CookieSender> CookieSender::create(Context& context, std::size_t ring_bytes,
                                          const QueueOptions& options) {
  auto queue = QueueReceiver::create(context, ring_bytes, options);
  if (!queue) return queue.error();
  return CookieSender(std::move(*queue));
}

Status CookieSender::attach(const RdmaCookie& credit, std::int64_t timeout_ms) {
  return queue_.attach(credit, timeout_ms);
}

Result<PostedBuffer> CookieSender::peek() {
  auto record = queue_.peek();
  if (!record) return record.error();
  PostedBuffer buffer;
  if (record->size() != sizeof buffer) {
    queue_.consume();
    return Error{EPROTO, "a record of a cookie queue has another size"};
  }
  std::memcpy(&buffer, record->data(), sizeof buffer);
  return buffer;
}

Result<PostedBuffer> CookieSender::take() {
  auto buffer = peek();
  if (buffer.ok()) queue_.consume();
  return buffer;
}

// --- ZeroCopyReceiver ----------------------------------------------------------------------------

Result<ZeroCopyReceiver> ZeroCopyReceiver::create(Context& context,
                                                  const ZeroCopyOptions& options) {
  auto cookies = CookieReceiver::create(context, {options.peers_uid});
  if (!cookies) return cookies.error();
  auto transfers = QueueReceiver::create(context, options.ring_bytes, {options.peers_uid});
  if (!transfers) return transfers.error();
  return ZeroCopyReceiver(std::move(*cookies), std::move(*transfers));
}

Status ZeroCopyReceiver::attach(const QueueEnds& sender, std::int64_t timeout_ms) {
  if (auto s = cookies_.attach(sender.ring, timeout_ms); !s) return s;
  return transfers_.attach(sender.credit, timeout_ms);
}

Result<ZeroCopyMessage> ZeroCopyReceiver::try_receive() {
  if (broken_) return Error{EPROTO, "the sender completed a buffer that it does not have"};
  auto record = transfers_.peek();
  if (!record) return record.error();
  TransferRecord r;
  const bool whole = record->size() == sizeof r;
  if (whole) std::memcpy(&r, record->data(), sizeof r);
  transfers_.consume();
  const std::span<std::byte> posted = whole ? cookies_.find(r.id) : std::span<std::byte>();
  if (posted.empty() || r.length > posted.size()) {
    broken_ = true;
    return try_receive();
  }
  auto buffer = cookies_.take_back(r.id);
  if (!buffer) return buffer.error();
  return ZeroCopyMessage{r.id, buffer->first(r.status == 0 ? r.length : 0),
                         static_cast<int>(r.status)};
}

Result<ZeroCopyMessage> ZeroCopyReceiver::receive(std::int64_t timeout_ms) {
  const std::uint64_t deadline = deadline_after_ms(timeout_ms);
  for (;;) {
    auto m = try_receive();
    if (m.ok() || m.error().err != EAGAIN) return m;
    if (auto s = transfers_.wait(ms_left(deadline)); !s) return s.error();
  }
}

// --- ZeroCopySender ------------------------------------------------------------------------------

Result<ZeroCopySender> ZeroCopySender::create(Context& context, const ZeroCopyOptions& options) {
  auto cookies = CookieSender::create(context, options.ring_bytes, {options.peers_uid});
  if (!cookies) return cookies.error();
  auto transfers = QueueSender::create(context, QueueOptions{options.peers_uid});
  if (!transfers) return transfers.error();
  auto rdma = RdmaQueue::create(context, 4);
  if (!rdma) return rdma.error();
  return ZeroCopySender(context.core(), std::move(*cookies), std::move(*transfers),
                        std::move(*rdma), options.peers_uid);
}

Status ZeroCopySender::attach(const QueueEnds& receiver, std::int64_t timeout_ms) {
  if (auto s = transfers_.attach(receiver.ring, timeout_ms); !s) return s;
  return cookies_.attach(receiver.credit, timeout_ms);
}

// The RDMA write. Its outcome as an errno value; an Error when there is none.
Result<int> ZeroCopySender::transfer(const PostedBuffer& buffer,
                                     std::span<const std::byte> message) {
  auto remote = RemoteAperture::import(context_, buffer.cookie, -1, peers_uid_);
  if (!remote) return remote.error().err;
  if (auto s = rdma_.write(*remote, 0, message.data(), message.size()); !s) return s.error();
  RdmaCompletion completion;
  for (;;) {
    auto n = rdma_.wait({&completion, 1});
    if (n.ok()) return completion.status;
    // The caller's memory is in use until the completion: a signal must not end this wait.
    if (n.error().err != EINTR) return n.error();
  }
}

Status ZeroCopySender::send(std::span<const std::byte> message, std::int64_t timeout_ms) {
  const std::uint64_t deadline = deadline_after_ms(timeout_ms);
  // Room for the completion first, so that nothing can stand between a filled buffer and its news.
  if (auto s = transfers_.wait(sizeof(TransferRecord), ms_left(deadline)); !s) return s;
  for (;;) {
    auto buffer = cookies_.peek();
    if (!buffer && buffer.error().err == EAGAIN) {
      if (auto s = cookies_.wait(ms_left(deadline)); !s) return s;
      continue;
    }
    if (!buffer) return buffer.error();
    if (buffer->cookie.length < message.size()) {
      return Error{EMSGSIZE, "the message is longer than the peer's next buffer"};
    }
    (void)cookies_.take();
    auto outcome = transfer(*buffer, message);
    if (!outcome) return outcome.error();
    if (*outcome == ESTALE) continue;  // withdrawn
    const TransferRecord record{buffer->id, *outcome == 0 ? message.size() : 0,
                                static_cast<std::uint32_t>(*outcome), 0};
    Status told = transfers_.try_send(bytes_of(record));
    if (*outcome != 0) return Error{*outcome, "write into the peer's buffer"};
    return told;
  }
}

}  // namespace clan
