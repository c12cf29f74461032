// ConnectedPeerVote: the address that most packets go to: a majority vote (Boyer and Moore, 1981)
// with a bound, so that the past fades. Constant memory. Not thread-safe.
#pragma once

#include <algorithm>

#include "link/udp/wire/socket_address.h"

namespace clan::udp {

class ConnectedPeerVote {
 public:
  static constexpr unsigned kEnough = 64;  ///< votes ahead of all others together
  static constexpr unsigned kMost = 256;   ///< votes that are kept
  static constexpr unsigned kMostPatience = 1u << 20;

  /// A train goes to `to`.
  void note(const SocketAddress& to) {
    if (to == leader_) [[likely]] {
      votes_ = std::min(votes_ + 1, std::max(kMost, patience_));
    } else if (votes_ > 0) {
      --votes_;
    } else {
      leader_ = to;
      votes_ = 1;
    }
  }
  /// Begins anew with `to`, unless that leads: it is not distrusted for another in the same vote.
  void begin_with(const SocketAddress& to) {
    if (to == leader_) return;
    *this = {};
    leader_ = to;
  }
  bool has_votes() const { return votes_ > 0; }
  /// It has just been noted, and has a majority.
  bool is(const SocketAddress& to) const { return votes_ >= patience_ && to == leader_; }
  /// What was done for the leader was wrong: it takes twice the votes from now on.
  void distrust() {
    votes_ = 0;
    patience_ = std::min(patience_ * 2, kMostPatience);
  }

 private:
  SocketAddress leader_;
  unsigned votes_ = 0;
  unsigned patience_ = kEnough;
};

}  // namespace clan::udp
