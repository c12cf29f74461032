// Waiting for another thread or process that keeps a counter of calls closed.
#pragma once

#include <cstdint>
#include <cstring>

#include "os/signals.h"
#include "os/sock_diag.h"
#include "state/open_file.h"
#include "state/socket.h"

namespace clan::preload {

/// For a counter of calls that another thread has closed, perhaps one of another process that
/// shares the open file. How long calls wait, and when the connection is reset, is in
/// clan/wait_budget.h. A counter whose closer has died is opened in its place.
class UntilOpen {
 public:
  /// `closer`: what closes it in the place of one that has died; 0: it is opened.
  UntilOpen(int fd, Socket& s, std::int32_t closer = 0)
      : fd_(fd), s_(s), closer_(closer), wait_(s.pipe.call_waits()) {}
  /// A moment. False: the call is to say that there is nothing for now; so are those behind it, at
  /// once, until one has found the counter open, see found_open().
  bool wait(Slot::Counter& counter);
  /// That has been said of the counter, and it is still closed: a call would do nothing.
  bool is_shut(Slot::Counter& counter);
  static void found_open(Socket& s, OwnerWait& wait) {
    if (wait.gave_up()) [[unlikely]]
      wait.over(s.pipe.owner_waits());
  }
  /// `closer` has it, from a thread that had died: what that did last it may not have noted.
  bool took_over() const { return took_over_; }

 private:
  OwnerWait& wait_of(const Slot::Counter& counter) const {
    return &counter == &s_.open_file().sends ? s_.sends_wait : s_.receives_wait;
  }
  void look(Slot::Counter& counter, OwnerWait& wait);
  void open_for(Slot::Counter& counter, std::uint64_t now, bool killed);

  int fd_;
  Socket& s_;
  const std::int32_t closer_;
  std::uint32_t turns_ = 0;
  CallWait wait_;
  bool took_over_ = false;
};

}  // namespace clan::preload
