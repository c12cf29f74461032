// What the calls of a process's life (process_api.cc), of exec (exec_api.cc) and by number (by_number_api.cc)
// share.
#pragma once

#include <utility>

#include "os/real.h"
#include "state/socket.h"

namespace clan::preload {

/// What fork() of the C library does by itself, for those that do without it.
void before_fork();
void after_fork(bool in_child);
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

/// A sandbox is about to be closed around the process: it knows the system calls of the program, not ours,
/// and may kill for any other. Nothing moves here any more, and what has moved goes back while that is
/// possible. Sockets that other processes share with us stay on TCP there too, as we could not follow them.
void enter_sandbox();

/// At the start: the connections that the program before exec has handed on.
void take_over_connections();

}  // namespace clan::preload
