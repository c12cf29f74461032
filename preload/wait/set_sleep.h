// Sleeping in epoll sets: their sockets' peers are asked to ring.
#pragma once

#include <sys/epoll.h>

#include <cstdint>

#include "os/sys.h"
#include "wait/epoll_set.h"
#include "wait/set_lock.h"

namespace clan::preload {

/// Asks the peers of all that are watched to ring. False: something is there already, or no memory.
/// To be followed by awake(*sleep).
bool prepare(Set& set, SetSleep** sleep);

/// Something may come by shared memory.
bool watches_pipes(const Set& set);

/// The calling thread sleeps no more. Sets may have been put into others, or closed, meanwhile.
/// Takes the locks.
void awake(SetSleep* sleep);

/// The kernel calls a set ready. For doorbells alone?
bool only_doorbells(Set& set);

/// Whether an event of the kernel's is for a set in `set` in which nothing holds, or all that does
/// has been reported.
bool is_no_news_of_nested(Set& set, const epoll_event& event);

/// The kernel's wait, after prepare() if `prepared`. The thread may be cancelled there.
template <typename Sleep>
int sleep_prepared(SetSleep* prepared, Sleep&& sleep) {
  struct Awake {
    SetSleep* prepared;
    ~Awake() {
      if (prepared == nullptr) return;
      KeepErrno keep;
      awake(prepared);
    }
  } awake_after{prepared};
  return sleep();
}

}  // namespace clan::preload
