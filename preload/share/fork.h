// Fork: parent and child have the same sockets, and what each may do with them depends on the
// other.
//
// The order of locks, from the outside in: fork, Socket::moving, epoll sets (set_lock.h), resends,
// AF_CLAN, the pool of Sockets.
#pragma once

#include <utility>

#include "os/sys.h"

namespace clan::preload {

/// What fork() of the C library does by itself, for those that do without it.
void before_fork();

void after_fork(bool in_child);

/// In the parent: there is no child.
void fork_has_failed();

template <typename Fork>
long forked_by(Fork&& fork) {
  before_fork();
  const long rc = std::forward<Fork>(fork)();
  if (rc < 0) {
    KeepErrno keep;
    fork_has_failed();
  }
  after_fork(rc == 0);
  return rc;
}

}  // namespace clan::preload
