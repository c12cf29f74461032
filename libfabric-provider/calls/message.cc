// The tables of fi_send() and fi_recv(), with tags and without.
#include "calls/message_receive.h"
#include "calls/message_send.h"
#include "objects/shared_context.h"

namespace clan::ofi {
namespace {

constexpr auto kUntagged = ReceiveQueue::kUntagged;
constexpr auto kTagged = ReceiveQueue::kTagged;

template <typename Receiver>
ssize_t msg_recv(fid_ep* ep, void* buffer, std::size_t length, void*, fi_addr_t from,
                 void* context) {
  return receive_one_message<Receiver>(ep, buffer, length, {.kind = kUntagged, .from = from},
                                       context);
}

template <typename Receiver>
ssize_t msg_recvv(fid_ep* ep, const iovec* iov, void**, std::size_t count, fi_addr_t from,
                  void* context) {
  auto& endpoint = *static_cast<Receiver*>(ep);
  return receive_message(endpoint, iov, count, {.kind = kUntagged, .from = from}, context,
                         endpoint.receive_flags());
}

template <typename Receiver>
ssize_t msg_recvmsg(fid_ep* ep, const fi_msg* msg, std::uint64_t flags) {
  if ((flags & (FI_PEEK | FI_CLAIM | FI_DISCARD)) != 0) return -FI_EOPNOTSUPP;
  return receive_message(*static_cast<Receiver*>(ep), msg->msg_iov, msg->iov_count,
                         {.kind = kUntagged, .from = msg->addr}, msg->context, flags);
}

ssize_t msg_send(fid_ep* ep, const void* buffer, std::size_t length, void*, fi_addr_t to,
                 void* context) {
  return send_one_message(ep, buffer, length, to, {.kind = kUntagged}, context);
}

ssize_t msg_sendv(fid_ep* ep, const iovec* iov, void**, std::size_t count, fi_addr_t to,
                  void* context) {
  Endpoint& endpoint = endpoint_of(ep);
  return send_message(endpoint, iov, count, to, {.kind = kUntagged}, context,
                      endpoint.send_flags());
}

ssize_t msg_sendmsg(fid_ep* ep, const fi_msg* msg, std::uint64_t flags) {
  const MessageLabel label{.kind = kUntagged,
                           .data = (flags & FI_REMOTE_CQ_DATA) != 0 ? &msg->data : nullptr};
  return send_message(endpoint_of(ep), msg->msg_iov, msg->iov_count, msg->addr, label, msg->context,
                      flags);
}

ssize_t msg_inject(fid_ep* ep, const void* buffer, std::size_t length, fi_addr_t to) {
  return inject_message(ep, buffer, length, to, {.kind = kUntagged});
}

ssize_t msg_senddata(fid_ep* ep, const void* buffer, std::size_t length, void*, std::uint64_t data,
                     fi_addr_t to, void* context) {
  return send_one_message(ep, buffer, length, to, {.kind = kUntagged, .data = &data}, context);
}

ssize_t msg_injectdata(fid_ep* ep, const void* buffer, std::size_t length, std::uint64_t data,
                       fi_addr_t to) {
  return inject_message(ep, buffer, length, to, {.kind = kUntagged, .data = &data});
}

template <typename Receiver>
ssize_t tagged_recv(fid_ep* ep, void* buffer, std::size_t length, void*, fi_addr_t from,
                    std::uint64_t tag, std::uint64_t ignore, void* context) {
  return receive_one_message<Receiver>(ep, buffer, length, {kTagged, from, tag, ignore}, context);
}

template <typename Receiver>
ssize_t tagged_recvv(fid_ep* ep, const iovec* iov, void**, std::size_t count, fi_addr_t from,
                     std::uint64_t tag, std::uint64_t ignore, void* context) {
  auto& endpoint = *static_cast<Receiver*>(ep);
  return receive_message(endpoint, iov, count, {kTagged, from, tag, ignore}, context,
                         endpoint.receive_flags());
}

ssize_t shared_tagged_recvmsg(fid_ep* ep, const fi_msg_tagged* msg, std::uint64_t flags) {
  if ((flags & (FI_PEEK | FI_CLAIM | FI_DISCARD)) != 0) return -FI_EOPNOTSUPP;
  return receive_message(*static_cast<SharedReceive*>(ep), msg->msg_iov, msg->iov_count,
                         {kTagged, msg->addr, msg->tag, msg->ignore}, msg->context, flags);
}

ssize_t tagged_recvmsg(fid_ep* ep, const fi_msg_tagged* msg, std::uint64_t flags) {
  Endpoint& endpoint = endpoint_of(ep);
  const WantedMessage wanted{kTagged, msg->addr, msg->tag, msg->ignore};
  if ((flags & (FI_PEEK | FI_CLAIM | FI_DISCARD)) == 0) {
    return receive_message(endpoint, msg->msg_iov, msg->iov_count, wanted, msg->context, flags);
  }
  if (msg->iov_count > kIovLimit || (flags & (FI_CLAIM | FI_PEEK)) == 0) return -FI_EINVAL;
  std::lock_guard lock(endpoint.lock());
  if (!endpoint.enabled()) return -FI_EOPBADSTATE;
  if ((flags & FI_PEEK) != 0) return peek_message(endpoint, wanted, msg->context, flags);
  return take_claimed_message(endpoint, msg->msg_iov, msg->iov_count, wanted, msg->context, flags);
}

ssize_t tagged_send(fid_ep* ep, const void* buffer, std::size_t length, void*, fi_addr_t to,
                    std::uint64_t tag, void* context) {
  return send_one_message(ep, buffer, length, to, {.kind = kTagged, .tag = tag}, context);
}

ssize_t tagged_sendv(fid_ep* ep, const iovec* iov, void**, std::size_t count, fi_addr_t to,
                     std::uint64_t tag, void* context) {
  Endpoint& endpoint = endpoint_of(ep);
  return send_message(endpoint, iov, count, to, {.kind = kTagged, .tag = tag}, context,
                      endpoint.send_flags());
}

ssize_t tagged_sendmsg(fid_ep* ep, const fi_msg_tagged* msg, std::uint64_t flags) {
  const MessageLabel label{kTagged, msg->tag,
                           (flags & FI_REMOTE_CQ_DATA) != 0 ? &msg->data : nullptr};
  return send_message(endpoint_of(ep), msg->msg_iov, msg->iov_count, msg->addr, label, msg->context,
                      flags);
}

ssize_t tagged_inject(fid_ep* ep, const void* buffer, std::size_t length, fi_addr_t to,
                      std::uint64_t tag) {
  return inject_message(ep, buffer, length, to, {.kind = kTagged, .tag = tag});
}

ssize_t tagged_senddata(fid_ep* ep, const void* buffer, std::size_t length, void*,
                        std::uint64_t data, fi_addr_t to, std::uint64_t tag, void* context) {
  return send_one_message(ep, buffer, length, to, {kTagged, tag, &data}, context);
}

ssize_t tagged_injectdata(fid_ep* ep, const void* buffer, std::size_t length, std::uint64_t data,
                          fi_addr_t to, std::uint64_t tag) {
  return inject_message(ep, buffer, length, to, {kTagged, tag, &data});
}

}  // namespace

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
