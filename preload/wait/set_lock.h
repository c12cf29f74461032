// Locks of epoll sets: each set has its own, or nearly. A thread needs one at a time.
//
// Under it are only calls of the system that do not wait, and the locks of sockets' lists
// (Watch::listing) and of the pools of sets. In front of it is Socket::moving. Fork takes all of
// them, and Making.
#pragma once

#include "os/signals.h"
#include "os/spin_lock.h"
#include "state/socket.h"
#include "wait/epoll_set.h"

namespace clan::preload {

/// Something that is_due() for a socket, as the calling thread has found under the lock of a set:
/// it is done when the thread lets go of that. What finds no place is found at the next check.
struct Due {
  static constexpr int kMost = 8;
  int count;
  struct {
    int fd;
    Socket* socket;
  } of[kMost];
};
// initial-exec: asked on the data path
extern constinit thread_local Due t_due __attribute__((tls_model("initial-exec")));
void note_due(int fd, Socket& s);

/// Locks a set. Checks under it do nothing for a connection; what is due is done behind it.
class Guard {
 public:
  /// Locks a set that the caller keeps, unless the calling thread has its lock already, or it has
  /// none (poll_moved.h).
  explicit Guard(const Set& set);
  /// Locks the set that has this descriptor, if there is one.
  explicit Guard(int epfd);
  /// Takes that lock, if the interest is still in the socket's list and under it; see
  /// for_interests().
  Guard(const Socket& s, const Interest& i, SpinLock* lock);
  ~Guard();
  /// False: there is no such set.
  explicit operator bool() const { return lock_ != nullptr; }
  Set* set() const { return set_; }
  /// Something is due: when it has been done, the sockets are to be checked again.
  bool owes() const { return t_due.count > 0; }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  void take(SpinLock* lock);
  void let_go();

  DeferSignals undisturbed_;
  Set* set_ = nullptr;
  SpinLock* lock_ = nullptr;
  const bool outermost_;
};

/// Locks a set for a glance, if that is free or the calling thread has it already. The caller keeps
/// the set, and is DeferSignals.
class TryGuard {
 public:
  explicit TryGuard(const Set& set);
  ~TryGuard();
  explicit operator bool() const { return held_already_ || lock_ != nullptr; }
  TryGuard(const TryGuard&) = delete;
  TryGuard& operator=(const TryGuard&) = delete;

 private:
  bool held_already_;
  SpinLock* lock_ = nullptr;
};

/// Sets are made by one thread at a time.
class Making {
 public:
  Making();
  ~Making();
  Making(const Making&) = delete;
  Making& operator=(const Making&) = delete;

 private:
  DeferSignals undisturbed_;
};

/// The next interest of a socket behind `last`, by no order that means anything, and under which
/// lock it is; null: none.
Interest* next_interest(const Socket& s, const Interest* last, SpinLock** lock);

/// Calls `f(interest)` for each interest of a socket, under the lock of its set; `f` may remove it.
/// One that comes meanwhile may be left out.
template <typename F>
void for_interests(const Socket& s, F&& f) {
  SpinLock* lock;
  for (Interest *i, *last = nullptr; (i = next_interest(s, last, &lock)) != nullptr;) {
    const Guard guard(s, *i, lock);
    if (!guard) continue;  // it is gone, or in another set now
    last = i;
    f(*i);
  }
}

/// All locks of sets, for fork.
void lock_epoll();
void unlock_epoll();

}  // namespace clan::preload
