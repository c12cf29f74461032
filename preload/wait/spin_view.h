#pragma once

#include <algorithm>
#include <cstdint>

#include "clan/face/wait.h"
#include "kernel/sock_diag.h"
#include "state/remote.h"
#include "state/socket.h"
#include "stream/ending.h"
#include "table/fd_table.h"
#include "wait/epoll_set.h"
#include "wait/ready_check.h"

namespace clan::preload {

/// What a spinning thread checks without the lock: moved sockets that are quiet.
class SpinView {
 public:
  SpinView() = default;
  ~SpinView() { clear(); }
  SpinView(const SpinView&) = delete;
  SpinView& operator=(const SpinView&) = delete;

  /// Takes the set's watched sockets, under the lock. False: none.
  bool take(const Set& set) {
    clear();
    changes_ = set.changes.load(std::memory_order_relaxed);
    rest_ = set.watched.count > kMost;
    remote_ = false;
    for (std::uint32_t k = 0; k < set.watched.count; ++k) {
      const Interest& i = *set.watched.at[k];
      remote_ |= is_remote(*i.socket);
      const bool simple = count_ < kMost && quiet(i);
      rest_ |= !simple;
      if (!simple) continue;
      i.socket->refs.fetch_add(1, std::memory_order_relaxed);
      sockets_[count_++] = i.socket;
    }
    return set.watched.count > 0;
  }
  /// Checks some, others each time.
  bool any() {
    for (std::uint32_t k = std::min(count_, kSome); k > 0; --k) {
      next_ = next_ + 1 < count_ ? next_ + 1 : 0;
      if (!is_idle_fast(*sockets_[next_])) return true;
    }
    return false;
  }
  /// Whether to check under the lock: for other sockets, or because the set has changed.
  bool rest(const Set& set) const {
    return rest_ || changes_ != set.changes.load(std::memory_order_relaxed);
  }
  /// Whether one of them is remote.
  bool remote() const { return remote_; }
  /// Returns what is known of all their peers.
  PeerHint peers() const {
    PeerHint peers{0, count_ > 0};
    for (std::uint32_t k = 0; k < count_; ++k) {
      const PeerHint peer = awaited_of(*sockets_[k]);
      peers.cpu = k == 0 || peer.cpu == peers.cpu ? peer.cpu : 0;
      peers.slept &= peer.slept;
    }
    return peers;
  }

 private:
  static constexpr std::uint32_t kMost = 16, kSome = 4;
  void clear() {
    while (count_ > 0) (void)SocketRef(sockets_[--count_]);
  }
  Socket* sockets_[kMost];
  std::uint32_t count_ = 0, next_ = 0;
  std::uint32_t changes_ = 0;
  bool rest_ = false, remote_ = false;
};

}  // namespace clan::preload
