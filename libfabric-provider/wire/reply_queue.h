// Replies owed to peers (acknowledgements, results of small reads and of atomic operations,
// notices), that must get there although there may be no room in the peer's ring now.
//
// What a peer is owed is bounded by what it may ask for: kMostOwed, kMostKept (wire.h).
#pragma once

#include <clan/message.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace clan::ofi {

struct Peer;

/// The replies to one peer.
struct Replies {
  std::deque<std::vector<std::byte>> waiting;
  std::size_t bytes = 0;    ///< of those that wait, with what keeping them costs
  bool backlogged = false;  ///< in the list of ReplyQueue, whose next is:
  Peer* next = nullptr;
  bool must_disconnect = false;  ///< one was lost for want of memory: the connection must end

  bool empty() const { return waiting.empty(); }
  void clear() {
    waiting.clear();
    bytes = 0;
  }
};

class ReplyQueue {
 public:
  /// Sends a message whole or not at all. EAGAIN: no room; any other error: the peer is gone.
  using TrySend = std::function<Status(PeerIndex, std::span<const std::byte>)>;
  explicit ReplyQueue(TrySend try_send) : try_send_(std::move(try_send)) {}

  /// Sends it now, or keeps it until flush(). Does nothing for a peer without a connection.
  void send(Peer& peer, std::span<const std::byte> message);
  /// Sends what waits for a peer that has accepted, as far as there is room. False: something is
  /// left.
  bool flush(Peer& peer);

  /// Remembers that a peer is to be visited by flush_all().
  void note_backlog(Peer& peer);
  bool has_backlog() const { return first_ != nullptr; }
  /// `flush` answers whether nothing is left for that peer. It may note others.
  void flush_all(const std::function<bool(Peer&)>& flush);
  /// Whether a reply has been lost since last asked: some peer is Replies::must_disconnect.
  bool take_lost() { return std::exchange(lost_, false); }
  bool lost() const { return lost_; }

 private:
  TrySend try_send_;
  // Through the peers themselves: to be owed something must not need memory.
  Peer* first_ = nullptr;
  Peer* last_ = nullptr;
  bool lost_ = false;
};

}  // namespace clan::ofi
