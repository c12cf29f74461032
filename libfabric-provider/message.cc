// fi_send() and fi_recv() in all their forms, with tags and without.
#include <cerrno>
#include <cstring>
#include <vector>

#include "counter.h"
#include "cq.h"
#include "deferred.h"
#include "domain.h"
#include "endpoint.h"
#include "shared_context.h"

namespace clan::ofi {
namespace {

constexpr auto kUntagged = ReceiveQueue::kUntagged;
constexpr auto kTagged = ReceiveQueue::kTagged;

Endpoint& endpoint_of(fid_ep* ep) { return *static_cast<Endpoint*>(ep); }

std::size_t total_length(const iovec* iov, std::size_t count) {
  std::size_t length = 0;
  for (std::size_t i = 0; i < count; ++i) length += iov[i].iov_len;
  return length;
}

// --- sending -------------------------------------------------------------------------------------

// What a message is called, besides its bytes.
struct Label {
  ReceiveQueue::Kind kind;
  std::uint64_t tag = 0;
  const std::uint64_t* data = nullptr;

  WireHeader header() const {
    WireHeader h{.op = kind == kTagged ? Op::kTagged : Op::kMessage, .tag = tag};
    if (data != nullptr) {
      h.flags = kHasData;
      h.data = *data;
    }
    return h;
  }
};

// How an operation ends: the counter that counts it, and whether the queue gets a completion.
struct Ending {
  Counter* counter = nullptr;
  bool completion = false;
};

// Whether a send that answered `rc` is over all the same: a sender of datagrams is not told of
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
                 const Label& label, void* context, std::uint64_t flags, const Ending& ending) {
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
  request.flags = FI_SEND | (label.kind == kTagged ? FI_TAGGED : FI_MSG);
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

Ending usual_ending(const Endpoint& endpoint, std::uint64_t flags) {
  return {endpoint.counter(Endpoint::kSends), endpoint.sends_complete(flags)};
}

// FI_TRIGGER: when the counter says so.
ssize_t send_later(Endpoint& endpoint, const iovec* iov, std::size_t count, fi_addr_t to,
                   const Label& label, void* context, std::uint64_t flags) {
  Deferred deferred;
  if (!trigger_of(context, &deferred)) return -FI_EINVAL;
  deferred.endpoint = &endpoint;
  deferred.counter = endpoint.counter(Endpoint::kSends);
  deferred.context = context;
  deferred.flags = FI_SEND | (label.kind == kTagged ? FI_TAGGED : FI_MSG);
  deferred.start = [&endpoint, pieces = std::vector<iovec>(iov, iov + count), to, kept = label,
                    context, flags, data = label.data != nullptr ? *label.data : 0]() {
    Label again = kept;
    if (again.data != nullptr) again.data = &data;
    return send_now(endpoint, pieces.data(), pieces.size(), to, again, context, flags,
                    usual_ending(endpoint, flags));
  };
  endpoint.domain().defer(std::move(deferred));
  endpoint.domain().run_due();
  return 0;
}

ssize_t send(Endpoint& endpoint, const iovec* iov, std::size_t count, fi_addr_t to,
             const Label& label, void* context, std::uint64_t flags) {
  if (count > kIovLimit) return -FI_EINVAL;
  std::lock_guard lock(endpoint.lock());
  if ((flags & FI_TRIGGER) != 0) [[unlikely]] {
    return send_later(endpoint, iov, count, to, label, context, flags & ~FI_TRIGGER);
  }
  return send_now(endpoint, iov, count, to, label, context, flags, usual_ending(endpoint, flags));
}

ssize_t send_one(fid_ep* ep, const void* buffer, std::size_t length, fi_addr_t to,
                 const Label& label, void* context) {
  Endpoint& endpoint = endpoint_of(ep);
  const iovec iov{const_cast<void*>(buffer), length};
  return send(endpoint, &iov, 1, to, label, context, endpoint.send_flags());
}

ssize_t inject(fid_ep* ep, const void* buffer, std::size_t length, fi_addr_t to,
               const Label& label) {
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

// --- receiving -----------------------------------------------------------------------------------

constexpr std::uint64_t kAnyTag = ~std::uint64_t{0};

struct Wanted {
  ReceiveQueue::Kind kind;
  fi_addr_t from = FI_ADDR_UNSPEC;
  std::uint64_t tag = 0;
  std::uint64_t ignore = kAnyTag;
};

// Receives are posted on an Endpoint or on a SharedReceive. Under the lock.
template <typename Receiver>
Posted* make_receive(Receiver& endpoint, const iovec* iov, std::size_t count, const Wanted& wanted,
                     const Peer* from, void* context, std::uint64_t flags) {
  Posted* posted = endpoint.receives().make_posted();
  posted->from = from;
  posted->tag = wanted.tag;
  posted->ignore = wanted.ignore;
  posted->context = context;
  posted->flags = flags & ~FI_TRIGGER;
  posted->least = endpoint.least_multi_receive();
  posted->pieces = static_cast<std::uint32_t>(count);
  for (std::size_t i = 0; i < count; ++i) posted->iov[i] = iov[i];
  posted->length = total_length(iov, count);
  return posted;
}

template <typename Receiver>
ssize_t receive(Receiver& endpoint, const iovec* iov, std::size_t count, const Wanted& wanted,
                void* context, std::uint64_t flags) {
  if (count > kIovLimit) return -FI_EINVAL;
  std::lock_guard lock(endpoint.lock());
  if (!endpoint.enabled()) return -FI_EOPBADSTATE;
  const Peer* from;
  if (!endpoint.find_source(wanted.from, &from)) return -FI_EINVAL;
  if ((flags & FI_MULTI_RECV) != 0 && count != 1) return -FI_EINVAL;
  Posted* posted = make_receive(endpoint, iov, count, wanted, from, context, flags);
  post_receive(endpoint.receives(), wanted.kind, *posted);
  return 0;
}

template <typename Receiver>
ssize_t receive_one(fid_ep* ep, void* buffer, std::size_t length, const Wanted& wanted,
                    void* context) {
  auto& endpoint = *static_cast<Receiver*>(ep);
  const iovec iov{buffer, length};
  return receive(endpoint, &iov, 1, wanted, context, endpoint.receive_flags());
}

// The completion by which a message is shown, not received.
void show(Endpoint& endpoint, Unexpected& message, void* context) {
  Cq* cq = endpoint.receive_cq();
  if (cq == nullptr) return;
  Completion completion;
  completion.context = context;
  completion.flags = FI_RECV | FI_TAGGED;
  completion.length = message.size;
  completion.tag = message.header.tag;
  if ((message.header.flags & kHasData) != 0) {
    completion.flags |= FI_REMOTE_CQ_DATA;
    completion.data = message.header.data;
  }
  if (endpoint.tells_source()) completion.source = endpoint.transport().address_of(*message.from);
  cq->write(completion);
}

// FI_PEEK: is there such a message? With FI_CLAIM it is kept for the caller, with FI_DISCARD thrown
// away.
ssize_t peek(Endpoint& endpoint, const Wanted& wanted, void* context, std::uint64_t flags) {
  ReceiveQueue& queue = endpoint.receives();
  const Peer* from;
  if (!endpoint.find_source(wanted.from, &from)) return -FI_EINVAL;
  endpoint.transport().progress();
  Unexpected* message = queue.find(kTagged, from, wanted.tag, wanted.ignore);
  if (message == nullptr) {
    Completion completion;
    completion.context = context;
    completion.flags = FI_RECV | FI_TAGGED;
    completion.tag = wanted.tag;
    if (endpoint.receive_cq() != nullptr) endpoint.receive_cq()->write_error(completion, FI_ENOMSG);
    return 0;
  }
  show(endpoint, *message, context);
  if ((flags & FI_DISCARD) != 0) {
    queue.unexpected(kTagged).remove(*message);
    endpoint.transport().receiver().discard(*message);
  } else if ((flags & FI_CLAIM) != 0) {
    queue.unexpected(kTagged).remove(*message);
    message->claimed_by = context;
    queue.claimed().push_back(*message);
  }
  return 0;
}

// FI_CLAIM alone: receives what was claimed under this context before, or throws it away.
ssize_t take_claimed(Endpoint& endpoint, const iovec* iov, std::size_t count, const Wanted& wanted,
                     void* context, std::uint64_t flags) {
  ReceiveQueue& queue = endpoint.receives();
  Unexpected* message = queue.claimed().first();
  while (message != nullptr && message->claimed_by != context) message = message->next;
  if (message == nullptr) return -FI_EINVAL;
  queue.claimed().remove(*message);
  if ((flags & FI_DISCARD) != 0) {
    show(endpoint, *message, context);
    endpoint.transport().receiver().discard(*message);
    return 0;
  }
  Posted* posted = make_receive(endpoint, iov, count, wanted, nullptr, context, flags);
  posted->claims = true;
  queue.posted(kTagged).push_back(*posted);
  message->to->transport().receiver().deliver(*message, *posted, queue, kTagged);
  return 0;
}

// --- the tables ----------------------------------------------------------------------------------

template <typename Receiver>
ssize_t msg_recv(fid_ep* ep, void* buffer, std::size_t length, void*, fi_addr_t from,
                 void* context) {
  return receive_one<Receiver>(ep, buffer, length, {.kind = kUntagged, .from = from}, context);
}

template <typename Receiver>
ssize_t msg_recvv(fid_ep* ep, const iovec* iov, void**, std::size_t count, fi_addr_t from,
                  void* context) {
  auto& endpoint = *static_cast<Receiver*>(ep);
  return receive(endpoint, iov, count, {.kind = kUntagged, .from = from}, context,
                 endpoint.receive_flags());
}

template <typename Receiver>
ssize_t msg_recvmsg(fid_ep* ep, const fi_msg* msg, std::uint64_t flags) {
  if ((flags & (FI_PEEK | FI_CLAIM | FI_DISCARD)) != 0) return -FI_EOPNOTSUPP;
  return receive(*static_cast<Receiver*>(ep), msg->msg_iov, msg->iov_count,
                 {.kind = kUntagged, .from = msg->addr}, msg->context, flags);
}

ssize_t msg_send(fid_ep* ep, const void* buffer, std::size_t length, void*, fi_addr_t to,
                 void* context) {
  return send_one(ep, buffer, length, to, {.kind = kUntagged}, context);
}

ssize_t msg_sendv(fid_ep* ep, const iovec* iov, void**, std::size_t count, fi_addr_t to,
                  void* context) {
  Endpoint& endpoint = endpoint_of(ep);
  return send(endpoint, iov, count, to, {.kind = kUntagged}, context, endpoint.send_flags());
}

ssize_t msg_sendmsg(fid_ep* ep, const fi_msg* msg, std::uint64_t flags) {
  const Label label{.kind = kUntagged,
                    .data = (flags & FI_REMOTE_CQ_DATA) != 0 ? &msg->data : nullptr};
  return send(endpoint_of(ep), msg->msg_iov, msg->iov_count, msg->addr, label, msg->context, flags);
}

ssize_t msg_inject(fid_ep* ep, const void* buffer, std::size_t length, fi_addr_t to) {
  return inject(ep, buffer, length, to, {.kind = kUntagged});
}

ssize_t msg_senddata(fid_ep* ep, const void* buffer, std::size_t length, void*, std::uint64_t data,
                     fi_addr_t to, void* context) {
  return send_one(ep, buffer, length, to, {.kind = kUntagged, .data = &data}, context);
}

ssize_t msg_injectdata(fid_ep* ep, const void* buffer, std::size_t length, std::uint64_t data,
                       fi_addr_t to) {
  return inject(ep, buffer, length, to, {.kind = kUntagged, .data = &data});
}

template <typename Receiver>
ssize_t tagged_recv(fid_ep* ep, void* buffer, std::size_t length, void*, fi_addr_t from,
                    std::uint64_t tag, std::uint64_t ignore, void* context) {
  return receive_one<Receiver>(ep, buffer, length, {kTagged, from, tag, ignore}, context);
}

template <typename Receiver>
ssize_t tagged_recvv(fid_ep* ep, const iovec* iov, void**, std::size_t count, fi_addr_t from,
                     std::uint64_t tag, std::uint64_t ignore, void* context) {
  auto& endpoint = *static_cast<Receiver*>(ep);
  return receive(endpoint, iov, count, {kTagged, from, tag, ignore}, context,
                 endpoint.receive_flags());
}

ssize_t shared_tagged_recvmsg(fid_ep* ep, const fi_msg_tagged* msg, std::uint64_t flags) {
  if ((flags & (FI_PEEK | FI_CLAIM | FI_DISCARD)) != 0) return -FI_EOPNOTSUPP;
  return receive(*static_cast<SharedReceive*>(ep), msg->msg_iov, msg->iov_count,
                 {kTagged, msg->addr, msg->tag, msg->ignore}, msg->context, flags);
}

ssize_t tagged_recvmsg(fid_ep* ep, const fi_msg_tagged* msg, std::uint64_t flags) {
  Endpoint& endpoint = endpoint_of(ep);
  const Wanted wanted{kTagged, msg->addr, msg->tag, msg->ignore};
  if ((flags & (FI_PEEK | FI_CLAIM | FI_DISCARD)) == 0) {
    return receive(endpoint, msg->msg_iov, msg->iov_count, wanted, msg->context, flags);
  }
  if (msg->iov_count > kIovLimit || (flags & (FI_CLAIM | FI_PEEK)) == 0) return -FI_EINVAL;
  std::lock_guard lock(endpoint.lock());
  if (!endpoint.enabled()) return -FI_EOPBADSTATE;
  if ((flags & FI_PEEK) != 0) return peek(endpoint, wanted, msg->context, flags);
  return take_claimed(endpoint, msg->msg_iov, msg->iov_count, wanted, msg->context, flags);
}

ssize_t tagged_send(fid_ep* ep, const void* buffer, std::size_t length, void*, fi_addr_t to,
                    std::uint64_t tag, void* context) {
  return send_one(ep, buffer, length, to, {.kind = kTagged, .tag = tag}, context);
}

ssize_t tagged_sendv(fid_ep* ep, const iovec* iov, void**, std::size_t count, fi_addr_t to,
                     std::uint64_t tag, void* context) {
  Endpoint& endpoint = endpoint_of(ep);
  return send(endpoint, iov, count, to, {.kind = kTagged, .tag = tag}, context,
              endpoint.send_flags());
}

ssize_t tagged_sendmsg(fid_ep* ep, const fi_msg_tagged* msg, std::uint64_t flags) {
  const Label label{kTagged, msg->tag, (flags & FI_REMOTE_CQ_DATA) != 0 ? &msg->data : nullptr};
  return send(endpoint_of(ep), msg->msg_iov, msg->iov_count, msg->addr, label, msg->context, flags);
}

ssize_t tagged_inject(fid_ep* ep, const void* buffer, std::size_t length, fi_addr_t to,
                      std::uint64_t tag) {
  return inject(ep, buffer, length, to, {.kind = kTagged, .tag = tag});
}

ssize_t tagged_senddata(fid_ep* ep, const void* buffer, std::size_t length, void*,
                        std::uint64_t data, fi_addr_t to, std::uint64_t tag, void* context) {
  return send_one(ep, buffer, length, to, {kTagged, tag, &data}, context);
}

ssize_t tagged_injectdata(fid_ep* ep, const void* buffer, std::size_t length, std::uint64_t data,
                          fi_addr_t to, std::uint64_t tag) {
  return inject(ep, buffer, length, to, {kTagged, tag, &data});
}

}  // namespace

ssize_t start_send(Endpoint& endpoint, ReceiveQueue::Kind kind, const fi_msg_tagged& msg,
                   std::uint64_t flags, Counter* counter) {
  const Label label{kind, msg.tag, (flags & FI_REMOTE_CQ_DATA) != 0 ? &msg.data : nullptr};
  return send_now(endpoint, msg.msg_iov, msg.iov_count, msg.addr, label, msg.context, flags,
                  {counter, (flags & FI_COMPLETION) != 0 && endpoint.send_cq() != nullptr});
}

ssize_t start_receive(Endpoint& endpoint, ReceiveQueue::Kind kind, const fi_msg_tagged& msg,
                      std::uint64_t flags, Counter* counter) {
  if (!endpoint.enabled() || msg.iov_count > kIovLimit) return -FI_EINVAL;
  const Peer* from;
  if (!endpoint.find_source(msg.addr, &from)) return -FI_EINVAL;
  Posted* posted = make_receive(endpoint, msg.msg_iov, msg.iov_count,
                                {kind, msg.addr, msg.tag, msg.ignore}, from, msg.context, flags);
  posted->deferred = true;
  posted->counter = counter;
  post_receive(endpoint.receives(), kind, *posted);
  return 0;
}

fi_ops_msg g_message_ops = {
    .size = sizeof(fi_ops_msg),
    .recv = guarded<msg_recv<Endpoint>>,
    .recvv = guarded<msg_recvv<Endpoint>>,
    .recvmsg = guarded<msg_recvmsg<Endpoint>>,
    .send = guarded<msg_send>,
    .sendv = guarded<msg_sendv>,
    .sendmsg = guarded<msg_sendmsg>,
    .inject = guarded<msg_inject>,
    .senddata = guarded<msg_senddata>,
    .injectdata = guarded<msg_injectdata>,
};

fi_ops_tagged g_tagged_ops = {
    .size = sizeof(fi_ops_tagged),
    .recv = guarded<tagged_recv<Endpoint>>,
    .recvv = guarded<tagged_recvv<Endpoint>>,
    .recvmsg = guarded<tagged_recvmsg>,
    .send = guarded<tagged_send>,
    .sendv = guarded<tagged_sendv>,
    .sendmsg = guarded<tagged_sendmsg>,
    .inject = guarded<tagged_inject>,
    .senddata = guarded<tagged_senddata>,
    .injectdata = guarded<tagged_injectdata>,
};

fi_ops_msg g_shared_message_ops = {
    .size = sizeof(fi_ops_msg),
    .recv = guarded<msg_recv<SharedReceive>>,
    .recvv = guarded<msg_recvv<SharedReceive>>,
    .recvmsg = guarded<msg_recvmsg<SharedReceive>>,
    .send = not_supported,
    .sendv = not_supported,
    .sendmsg = not_supported,
    .inject = not_supported,
    .senddata = not_supported,
    .injectdata = not_supported,
};

fi_ops_tagged g_shared_tagged_ops = {
    .size = sizeof(fi_ops_tagged),
    .recv = guarded<tagged_recv<SharedReceive>>,
    .recvv = guarded<tagged_recvv<SharedReceive>>,
    .recvmsg = guarded<shared_tagged_recvmsg>,
    .send = not_supported,
    .sendv = not_supported,
    .sendmsg = not_supported,
    .inject = not_supported,
    .senddata = not_supported,
    .injectdata = not_supported,
};

}  // namespace clan::ofi
