#include "wire/reply_queue.h"

#include <cerrno>
#include <new>

#include "transport/peer.h"
#include "wire/wire.h"

namespace clan::ofi {

void ReplyQueue::send(Peer& peer, std::span<const std::byte> message) {
  if (peer.index == kNoPeer && peer.pending == kNoPeer) return;
  Replies& replies = peer.replies;
  if (replies.empty() && peer.index != kNoPeer) {
    const Status sent = try_send_(peer.index, message);
    if (sent.ok() || sent.error().err != EAGAIN) return;  // or the peer is gone, and needs no reply
  }
  note_backlog(peer);
  try {
    replies.waiting.emplace_back(message.begin(), message.end());
    replies.bytes += message.size() + kAnswerCost;
  } catch (const std::bad_alloc&) {
    replies.must_disconnect = lost_ = true;
  }
}

bool ReplyQueue::flush(Peer& peer) {
  Replies& replies = peer.replies;
  while (!replies.empty()) {
    const std::vector<std::byte>& message = replies.waiting.front();
    if (const Status sent = try_send_(peer.index, message); !sent) {
      if (sent.error().err == EAGAIN) return false;
      peer.forget_replies();
      break;
    }
    replies.bytes -= message.size() + kAnswerCost;
    replies.waiting.pop_front();
  }
  return true;
}

void ReplyQueue::note_backlog(Peer& peer) {
  if (std::exchange(peer.replies.backlogged, true)) return;
  peer.replies.next = nullptr;
  (last_ != nullptr ? last_->replies.next : first_) = &peer;
  last_ = &peer;
}

void ReplyQueue::flush_all(const std::function<bool(Peer&)>& flush) {
  Peer* peer = std::exchange(first_, nullptr);
  last_ = nullptr;
  while (peer != nullptr) {
    Peer* const next = peer->replies.next;
    const bool all = flush(*peer);  // before it may be listed again
    peer->replies.backlogged = false;
    if (!all) note_backlog(*peer);
    peer = next;
  }
}

}  // namespace clan::ofi
