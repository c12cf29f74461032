// The bells of a Socket that has moved. A bell is a kernel pipe of one page. The sleepers of an end
// watch its read end by edges and never read it, so each byte that the other end writes, or is
// refused to write, wakes all of them.
#pragma once

#include "os/spin_lock.h"
#include "state/take_once.h"

namespace clan::preload {

struct Bells {
  KeptFd bell;         ///< this end's, to be watched; -1: sleepers ask for doorbells
  KeptFd others_bell;  ///< the other end's, to be written
  /// An epoll set of `bell`, by edges. For the thread that has `in_bell_set`, as an edge wakes one
  /// thread.
  KeptFd bell_set;
  SpinLock in_bell_set;
  SpinLock ringing;  ///< around a write to `others_bell`, and before that is closed

  /// Closes them all.
  void reset();
};

}  // namespace clan::preload
