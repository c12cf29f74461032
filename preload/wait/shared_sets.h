// Sets whose sockets go back to TCP: shared over fork, polled, or in other sets.
#pragma once

#include <utility>

#include "kernel/sock_diag.h"
#include "os/sys.h"
#include "wait/epoll_set.h"
#include "wait/set_lock.h"

namespace clan::preload {

/// Notes that this process uses the set. True: several do. Under the lock.
bool used_by_several(Set& set);

/// Takes the sockets of a set of several processes back to TCP.
void take_back(Set& set);

/// Takes the sockets of a set that is polled or in another set back to TCP, now and later: only the
/// kernel can report a set as ready.
void take_off_pipes(int epfd);

/// Called before this process changes the set. True: several use it.
bool changes_shared(int epfd);

/// Whether sets may have lived through a fork.
bool has_shared_sets();

/// Before fork, under the lock: prepares what parent and child know of each other's use of a set.
void share_sets();

void sets_forked();

/// A reference to a set for a thread that unlocks it and comes back. Keeps it and its contents,
/// even if another thread closes it, as the kernel's wait does.
class InUse {
 public:
  InUse() = default;
  ~InUse() {
    if (set_ == nullptr) return;
    KeepErrno keep;
    const Guard guard(*set_);
    release(*set_);
  }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;
  Set* get() const { return set_; }
  /// Both under the lock.
  void take(Set& set) {
    if (set_ == nullptr) ++set.refs;
    set_ = &set;
  }
  void drop() {
    if (set_ != nullptr) release(*std::exchange(set_, nullptr));
  }

 private:
  Set* set_ = nullptr;
};

}  // namespace clan::preload
