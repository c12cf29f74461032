// Sets whose sockets go back to TCP, as processes share them over fork or as they are themselves
// waited for.
#pragma once

#include <sys/epoll.h>

#include <utility>

#include "kernel/sock_diag.h"
#include "os/sys.h"
#include "wait/epoll_set.h"
#include "wait/set_lock.h"

namespace clan::preload {

/// A process uses the set. True: several do. Under the lock.
bool used_by_several(Set& set);

/// Several processes use the set: its sockets go back to TCP.
void take_back(Set& set);

/// Takes the sockets of a set that is polled, or in another set, back to TCP: only the kernel can
/// report a set as ready. What is put into it later stays on TCP.
void take_off_pipes(int epfd);

/// The set is about to be changed by this process. True: several use it.
bool changes_shared(int epfd);

/// There may be sets that have lived through a fork.
bool has_shared_sets();

/// Before fork, under the lock: what parent and child have to know of each other's use of a set.
/// After it, in the child.
void share_sets();

void sets_forked();

/// A set that the calling thread comes back to, after it has let go of the lock. As long as that it
/// is there, with all that is in it, even if another thread closes it: so it is for a thread in the
/// kernel's wait.
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
