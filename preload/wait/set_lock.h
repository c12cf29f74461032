// Locks of epoll sets: nearly one per set. A thread needs one at a time, after Socket::moving.
// Under it there are only system calls that do not wait, the locks of sockets' lists
// (Watch::listing) and of pools. Fork takes all of them, and `making`.
#pragma once

#include "os/signals.h"
#include "os/spin_lock.h"
#include "state/socket.h"
#include "wait/epoll_set.h"

namespace clan::preload {

/// What is_due() for sockets, as the calling thread noted under a set's lock; it is done after
/// unlocking. What finds no place here is found at the next check.
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

/// Locks a set. Checks under it change no connection; what is due is done after unlocking.
class Guard {
 public:
  /// Locks a set that the caller keeps, unless this thread has its lock or it is a poll()'s.
  explicit Guard(const Set& set);
  /// Locks the set with this descriptor, if any.
  explicit Guard(int epfd);
  /// Takes `lock` if the interest is still in the socket's list and under it; see for_interests().
  Guard(const Socket& s, const Interest& i, SpinLock* lock);
  ~Guard();
  /// False: no such set.
  explicit operator bool() const { return lock_ != nullptr; }
  Set* set() const { return set_; }
  /// Whether something is due; after that, the sockets have to be checked again.
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

/// Held to make a set, with signals deferred.
extern constinit SpinLock making;

/// Returns the interest of a socket after `last`, by address, and its lock; null: none.
Interest* next_interest(const Socket& s, const Interest* last, SpinLock** lock);

/// Calls `f(interest)` for each interest of a socket under its set's lock; `f` may remove it. May
/// miss one that is added meanwhile.
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
