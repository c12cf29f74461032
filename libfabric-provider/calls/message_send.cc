#include "calls/message_send.h"

#include <cerrno>
#include <utility>
#include <vector>

#include "objects/cq.h"
#include "objects/deferred.h"
#include "objects/domain.h"

namespace clan::ofi {
namespace {

std::size_t total_length(const iovec* iov, std::size_t count) {
  std::size_t length = 0;
  for (std::size_t i = 0; i < count; ++i) length += iov[i].iov_len;
  return length;
}

// Whether a send that answered `rc` is over all the same: a sender of datagrams gets no error for
// peers that are not there, or not any more.
bool lost(const Endpoint& endpoint, ssize_t rc) {
  if (!endpoint.datagrams()) return false;
  switch (-rc) {
    case FI_ECONNREFUSED:
    case FI_ECONNRESET:
    case FI_ECONNABORTED:
    case FI_ETIMEDOUT:
    case EPIPE:
    case EPROTO: return true;
    default: return false;
  }
}

// Under the lock.
ssize_t send_now(Endpoint& endpoint, const iovec* iov, std::size_t count, fi_addr_t to,
                 const MessageLabel& label, void* context, std::uint64_t flags,
                 const MessageEnding& ending) {
  if (!endpoint.enabled()) return -FI_EOPBADSTATE;
  const Endpoint::Target target = endpoint.target(to);
  if (target.peer == nullptr) return -target.err;
  SendRequest request;
  request.header = label.header();
  request.header.context = target.context;
  request.iov = iov;
  request.count = count;
  request.length = total_length(iov, count);
  if (request.length > endpoint.longest_message()) return -FI_EMSGSIZE;
  request.context = context;
  request.flags = FI_SEND | (label.kind == ReceiveQueue::kTagged ? FI_TAGGED : FI_MSG);
  request.completion = ending.completion;
  request.inject = (flags & FI_INJECT) != 0;
  if (request.inject && request.length > kInjectBytes) return -FI_EMSGSIZE;
  request.delivery = (flags & FI_DELIVERY_COMPLETE) != 0 && !endpoint.datagrams();
  request.counter = ending.counter;
  if ((flags & FI_FENCE) != 0) [[unlikely]] {
    if (const int rc = endpoint.transport().fence(*target.peer); rc != 0) return rc;
  }
  const ssize_t rc = endpoint.transport().send(endpoint, *target.peer, request);
  if (rc == 0 || !lost(endpoint, rc)) [[likely]]
    return rc;
  if (ending.counter != nullptr) ending.counter->count();
  if (ending.completion) endpoint.send_cq()->write({.context = context, .flags = request.flags});
  return 0;
}

MessageEnding usual_ending(const Endpoint& endpoint, std::uint64_t flags) {
  return {endpoint.counter(Endpoint::kSends), endpoint.sends_complete(flags)};
}

// FI_TRIGGER: when the counter says so.
ssize_t send_later(Endpoint& endpoint, const iovec* iov, std::size_t count, fi_addr_t to,
                   const MessageLabel& label, void* context, std::uint64_t flags) {
  Deferred deferred;
  if (!trigger_of(context, &deferred)) return -FI_EINVAL;
  const bool inject = (flags & FI_INJECT) != 0;
  if (inject && total_length(iov, count) > kInjectBytes) return -FI_EMSGSIZE;
  deferred.endpoint = &endpoint;
  deferred.peer = to;
  deferred.counter = endpoint.counter(Endpoint::kSends);
  deferred.context = context;
  deferred.flags = FI_SEND | (label.kind == ReceiveQueue::kTagged ? FI_TAGGED : FI_MSG);
  deferred.start = [&endpoint, body = Kept<iovec>(iov, count, inject), to, kept = label, context,
                    flags, data = label.data != nullptr ? *label.data : 0]() mutable {
    MessageLabel again = kept;
    if (again.data != nullptr) again.data = &data;
    const std::span<const iovec> pieces = body.get();
    return send_now(endpoint, pieces.data(), pieces.size(), to, again, context, flags,
                    usual_ending(endpoint, flags));
  };
  endpoint.domain().defer(std::move(deferred));
  endpoint.domain().run_due();
  return 0;
}

}  // namespace

ssize_t send_message(Endpoint& endpoint, const iovec* iov, std::size_t count, fi_addr_t to,
                     const MessageLabel& label, void* context, std::uint64_t flags) {
  if (count > kIovLimit) return -FI_EINVAL;
  std::lock_guard lock(endpoint.lock());
  if ((flags & FI_TRIGGER) != 0) [[unlikely]] {
    return send_later(endpoint, iov, count, to, label, context, flags & ~FI_TRIGGER);
  }
  return send_now(endpoint, iov, count, to, label, context, flags, usual_ending(endpoint, flags));
}

ssize_t send_one_message(fid_ep* ep, const void* buffer, std::size_t length, fi_addr_t to,
                         const MessageLabel& label, void* context) {
  Endpoint& endpoint = endpoint_of(ep);
  const iovec iov{const_cast<void*>(buffer), length};
  return send_message(endpoint, &iov, 1, to, label, context, endpoint.send_flags());
}

ssize_t inject_message(fid_ep* ep, const void* buffer, std::size_t length, fi_addr_t to,
                       const MessageLabel& label) {
  Endpoint& endpoint = endpoint_of(ep);
  if (length > kInjectBytes) return -FI_EMSGSIZE;
  std::lock_guard lock(endpoint.lock());
  if (!endpoint.enabled()) return -FI_EOPBADSTATE;
  const Endpoint::Target target = endpoint.target(to);
  if (target.peer == nullptr) return -target.err;
  WireHeader header = label.header();
  header.context = target.context;
  ssize_t rc = endpoint.transport().send_at_once(*target.peer, header, buffer, length);
  if (rc != 0 && lost(endpoint, rc)) rc = 0;
  if (rc == 0) {
    if (Counter* counter = endpoint.counter(Endpoint::kSends)) counter->count();
  }
  return rc;
}

ssize_t start_send(Endpoint& endpoint, ReceiveQueue::Kind kind, const fi_msg_tagged& msg,
                   std::uint64_t flags, Counter* counter) {
  if (msg.iov_count > kIovLimit) return -FI_EINVAL;
  const MessageLabel label{kind, msg.tag, (flags & FI_REMOTE_CQ_DATA) != 0 ? &msg.data : nullptr};
  return send_now(endpoint, msg.msg_iov, msg.iov_count, msg.addr, label, msg.context, flags,
                  {counter, (flags & FI_COMPLETION) != 0 && endpoint.send_cq() != nullptr});
}

}  // namespace clan::ofi
