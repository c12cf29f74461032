// Fork: parent and child share sockets.
//
// The order of locks, from the outside in: fork, Socket::moving, epoll sets (set_lock.h), resends,
// AF_CLAN, the pool of Sockets.
#pragma once

#include <utility>

#include "os/sys.h"

namespace clan::preload {

/// Enclose a fork; the C library's fork() calls them by itself.
void before_fork();
void after_fork(bool in_child);

/// Notes in the parent that there is no child.
void fork_has_failed();

/// Forks by `fork()`, which does not call before_fork() and after_fork().
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
