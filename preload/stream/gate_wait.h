// Waiting for another thread or process that has an end of the connection too.
#pragma once

#include <cstdint>
#include <cstring>

#include "os/signals.h"
#include "os/sock_diag.h"
#include "state/open_file.h"
#include "state/socket.h"

namespace clan::preload {

/// For a counter of calls that somebody has closed, perhaps another process that shares the open file. It
/// opens the counter in the place of one who has been killed; and of one who is stopped for ten seconds, or as long as
/// the connection's WaitBudget has left, when the connection is reset.
class UntilOpen {
 public:
  UntilOpen(int fd, Socket& s) : fd_(fd), s_(s), wait_(s.waits) {}
  /// A moment. False: it is open, or calls are counted in it, and has been for ten seconds.
  bool wait(Slot::Counter& counter);
  /// Somebody was killed who had it closed: what he did last he may not have noted.
  bool took_over() const { return took_over_; }

 private:
  int fd_;
  Socket& s_;
  std::uint32_t turns_ = 0;
  std::uint64_t closer_ = ~std::uint64_t{0};
  BudgetedWait wait_;  ///< for that one
  bool took_over_ = false;
};

/// A lock for the moments in which bytes from TCP are counted: threads that share the open file.
class Draining {
 public:
  Draining(int fd, Socket& s) : slot_(&s.open_file()) {
    if (!Slot::try_close(slot_->receives, me_)) [[unlikely]]
      wait(fd, s);
  }
  ~Draining() { Slot::open(slot_->receives, me_); }
  Draining(const Draining&) = delete;
  Draining& operator=(const Draining&) = delete;

 private:
  void wait(int fd, Socket& s);
  Undisturbed undisturbed_;
  std::int32_t me_ = thread_id();
  Slot* slot_;
};

/// For another thread or process that is in the middle of something; or says so, as anybody may have written
/// into the pipe.
class Patience {
 public:
  Patience(int fd, Socket& s) : fd_(fd), s_(s), wait_(s.waits) {}
  /// False: TCP has ended, or it has taken all of the connection's WaitBudget, and the connection has been reset.
  bool wait();

 private:
  int fd_;
  Socket& s_;
  std::uint32_t turns_ = 0;
  BudgetedWait wait_;
};

}  // namespace clan::preload
