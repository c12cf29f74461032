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
  const Guard guard;
  std::size_t used = 0;
  for (Interest *i = s.interests, *next = nullptr; i != nullptr; i = next) {
    next = i->next_of_socket;
    int epfd = -1;
    const int names = i->fd == fd ? staying(*i->set, &epfd) : 0;
    if (names == 0) continue;
    if (i->parked) {
      if (in_borrowed_memory()) continue;  // the set is the parent's, too
      change(*i->set, EPOLL_CTL_DEL, fd, nullptr);
      remove(i);
      continue;
    }
    if (names > 1 || i->set->within != nullptr) return -1;
    const int n =
        std::snprintf(text + used, room - used, "e%d/%d/%d/%x/%llx,", epfd, fd, i->fired ? 1 : 0,
                      i->events, static_cast<unsigned long long>(i->data.u64));
    if (n < 0 || used + static_cast<std::size_t>(n) >= room) return -1;
    used += static_cast<std::size_t>(n);
  }
  return static_cast<int>(used);
}

int take_over_set(const char* text) {
  int epfd, fd, fired, length = 0;
  unsigned events;
  unsigned long long data;
  if (std::sscanf(text, "e%d/%d/%d/%x/%llx,%n", &epfd, &fd, &fired, &events, &data, &length) != 5)
    return 0;
  const SocketRef s = acquire(fd);
  if (!s || !s->shared()) return length;
  const Guard guard;
  saw_set(epfd);
  Set* const set = make(epfd);
  Interest* const i = set != nullptr ? new_interest() : nullptr;
  if (i == nullptr || (i->set = set, !add(*set, i))) return length;
  i->socket = s.get();
  i->fd = fd;
  i->events = events;
  i->data.u64 = data;
  i->fired = fired != 0;
  i->next_of_socket = s->interests;
  s->interests = i;
  // order: as in control_add()
  s->in_sets.store(true, std::memory_order_seq_cst);
  answer_from_pipe(*i);
  return length;
}

}  // namespace clan::preload
