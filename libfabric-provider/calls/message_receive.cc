#include "calls/message_receive.h"

#include "objects/cq.h"
#include "objects/deferred.h"
#include "objects/domain.h"

namespace clan::ofi {
namespace {

constexpr auto kTagged = ReceiveQueue::kTagged;

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

}  // namespace

ssize_t peek_message(Endpoint& endpoint, const WantedMessage& wanted, void* context,
                     std::uint64_t flags) {
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
    message->to->transport().receiver().discard(*message);
  } else if ((flags & FI_CLAIM) != 0) {
    queue.unexpected(kTagged).remove(*message);
    message->claimed_by = context;
    queue.claimed().push_back(*message);
  }
  return 0;
}

ssize_t take_claimed_message(Endpoint& endpoint, const iovec* iov, std::size_t count,
                             const WantedMessage& wanted, void* context, std::uint64_t flags) {
  ReceiveQueue& queue = endpoint.receives();
  Unexpected* message = queue.claimed().first();
  while (message != nullptr && message->claimed_by != context) message = message->next;
  if (message == nullptr) return -FI_EINVAL;
  queue.claimed().remove(*message);
  if ((flags & FI_DISCARD) != 0) {
    show(endpoint, *message, context);
    message->to->transport().receiver().discard(*message);
    return 0;
  }
  Posted* posted = make_receive(endpoint, iov, count, wanted, nullptr, context, flags);
  posted->claims = true;
  queue.posted(kTagged).push_back(*posted);
  message->to->transport().receiver().deliver(*message, *posted, queue, kTagged);
  return 0;
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

}  // namespace clan::ofi
