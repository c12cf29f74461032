#include "wait/exec_inheritance.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <cstdio>

#include "os/memory_owner.h"
#include "os/sys.h"
#include "table/fd_table.h"
#include "table/unseen_sets.h"
#include "wait/epoll_set.h"
#include "wait/registration.h"
#include "wait/set_lock.h"

namespace clan::preload {
namespace {

// Its descriptors that stay open over exec: how many, and one of them.
int staying(const Set& set, int* one) {
  int count = 0;
  for (int fd = 0; fd < sets_below(); ++fd) {
    // relaxed: under the lock
    if (sets[fd].load(std::memory_order_relaxed) != &set) continue;
    const int flags = sys::fcntl(fd, F_GETFD);
    if (flags < 0 || (flags & FD_CLOEXEC) != 0) continue;
    *one = fd;
    ++count;
  }
  return count;
}

}  // namespace

int describe_sets(int fd, Socket& s, char* text, std::size_t room) {
  const KeepErrno keep;
  std::size_t used = 0;
  bool fits = true;
  for_interests(s, [&](Interest& i) {
    int epfd = -1;
    const int names = i.fd == fd ? staying(*i.set, &epfd) : 0;
    if (names == 0 || !fits) return;
    if (i.parked) {
      if (in_borrowed_memory()) return;  // the set is the parent's, too
      change(*i.set, EPOLL_CTL_DEL, fd, nullptr);
      return remove(&i);
    }
    const int n =
        std::snprintf(text + used, room - used, "e%d/%d/%d/%x/%llx,", epfd, fd, i.fired ? 1 : 0,
                      i.events, static_cast<unsigned long long>(i.data.u64));
    fits = names == 1 && i.set->within == nullptr && n >= 0 &&
           used + static_cast<std::size_t>(n) < room;
    if (fits) used += static_cast<std::size_t>(n);
  });
  return fits ? static_cast<int>(used) : -1;
}

int take_over_set(const char* text) {
  int epfd, fd, fired, length = 0;
  unsigned events;
  unsigned long long data;
  if (std::sscanf(text, "e%d/%d/%d/%x/%llx,%n", &epfd, &fd, &fired, &events, &data, &length) != 5)
    return 0;
  const SocketRef s = acquire(fd);
  if (!s || !s->shared()) return length;
  saw_set(epfd);
  const Making making;
  (void)make(epfd);
  const Guard guard(epfd);
  Interest* const i = guard ? new_interest() : nullptr;
  if (i == nullptr) return length;
  i->socket = s.get();
  i->fd = fd;
  i->events = events;
  i->data.u64 = data;
  i->fired = fired != 0;
  if (add(*guard.set(), i)) answer_from_pipe(*i);
  return length;
}

}  // namespace clan::preload
