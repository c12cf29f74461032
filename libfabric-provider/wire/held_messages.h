// Messages that are left in their peer's ring, and all behind them, until something else has
// happened: its initiator has made a small access, or the peer has taken replies that it is owed.
#pragma once

#include <clan/message.h>

#include <vector>

#include "wire/access_word.h"

namespace clan::ofi {

class HeldMessages {
 public:
  bool empty() const { return held_.empty(); }
  /// `word`: of an access that its initiator makes; null: replies are in the way.
  void add(PeerIndex from, const SharedAccessWord* word) { held_.push_back({from, word}); }
  void forget(PeerIndex from) {
    std::erase_if(held_, [from](const Held& held) { return held.from == from; });
  }
  /// Those that need not wait any longer: replies_in_the_way(from), has_gone(from), resume(from).
  template <typename RepliesInTheWay, typename HasGone, typename Resume>
  void resume(RepliesInTheWay&& replies_in_the_way, HasGone&& has_gone, Resume&& resume) {
    std::erase_if(held_, [&](const Held& held) {
      const bool waits =
          held.word != nullptr ? is_still_initiators(*held.word) : replies_in_the_way(held.from);
      if (waits && !has_gone(held.from)) return false;
      resume(held.from);
      return true;
    });
  }

 private:
  struct Held {
    PeerIndex from;
    const SharedAccessWord* word;
  };
  std::vector<Held> held_;
};

}  // namespace clan::ofi
