// Locks of epoll sets. Each set has its own, but sets of which one is in the other share one: so a
// thread needs one at a time, whatever is in what.
//
// Under it are only calls of the system that do not wait, and the locks of sockets' lists
// (Watch::listing) and of the pools of sets. In front of it are Socket::moving and, where a set is
// made or put into another one, Making. Fork takes all of them.
#pragma once

#include "os/signals.h"
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
  Guard(const Socket& s, const Interest& i, int lock);
  ~Guard();
  /// False: there is no such set.
  explicit operator bool() const { return lock_ >= 0; }
  Set* set() const { return set_; }
  /// Something is due: when it has been done, the sockets are to be checked again.
  bool owes() const { return t_due.count > 0; }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  void take(int lock);
  void let_go();

  DeferSignals undisturbed_;
  Set* set_ = nullptr;
  int lock_ = Set::kNoLock;
  const bool outermost_;
};

/// Locks a set for a glance, if that is free or the calling thread has it already. The caller keeps
/// the set, and is DeferSignals.
class TryGuard {
 public:
  explicit TryGuard(const Set& set);
  ~TryGuard();
  explicit operator bool() const { return held_already_ || lock_ >= 0; }
  TryGuard(const TryGuard&) = delete;
  TryGuard& operator=(const TryGuard&) = delete;

 private:
  bool held_already_;
  int lock_ = -1;
};

/// From now on two sets have one lock, as one is in the other. By their descriptors; under Making.
void share_lock(int outer, int inner);

/// Sets are made, and put into others, by one thread at a time.
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
Interest* next_interest(const Socket& s, const Interest* last, int* lock);

/// Calls `f(interest)` for each interest of a socket, under the lock of its set; `f` may remove it.
/// One that comes meanwhile may be left out.
template <typename F>
void for_interests(const Socket& s, F&& f) {
  int lock;
  for (Interest *i, *last = nullptr; (i = next_interest(s, last, &lock)) != nullptr;) {
    const Guard guard(s, *i, lock);
    if (!guard) continue;  // it is gone, or its set has another lock now
    last = i;
    f(*i);
  }
}

/// All locks of sets, for fork.
void lock_epoll();
void unlock_epoll();

}  // namespace clan::preload
