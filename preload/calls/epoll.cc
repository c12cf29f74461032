// epoll sets.
#include <sys/epoll.h>

#include <cstdint>

#include "calls/interpose.h"
#include "os/memory_owner.h"
#include "os/real.h"
#include "os/signals.h"
#include "os/timeout.h"
#include "share/fd_events.h"
#include "state/ring_memory.h"
#include "table/fd_table.h"
#include "table/internal_fds.h"
#include "table/unseen_sets.h"
#include "wait/waiting.h"

using namespace clan::preload;

namespace {

int made_set(int epfd) {
  if (epfd < 0 || in_borrowed_memory()) return epfd;
  gone(epfd);
  saw_set(epfd);
  return epfd;
}

// `sleep(to, n, ns)` is the kernel's wait with `mask`.
template <typename Sleep>
int wait_in_set(int epfd, epoll_event* events, int most, std::int64_t ns, const sigset_t* mask,
                Sleep&& sleep) {
  if (!is_seen_set(epfd)) [[unlikely]]
    saw_set(epfd);  // made by another process or program
  const ScopedSigmask masked(mask);
  if (!masked) return -1;
  return wait_for_events(
      epfd, events, most, ns,
      [&](epoll_event* to, int n, std::int64_t all) {
        return sleep_releasing(all, [&](std::int64_t left) { return sleep(to, n, left); });
      },
      mask);
}

}  // namespace

CLAN_INTERPOSED(int, epoll_create, (int size), (size)) {
  return made_set(with_room([size] { return real().epoll_create(size); }));
}

CLAN_INTERPOSED(int, epoll_create1, (int flags), (flags)) {
  return made_set(with_room([flags] { return real().epoll_create1(flags); }));
}

CLAN_INTERPOSED(int, epoll_ctl, (int epfd, int op, int fd, epoll_event* event),
                (epfd, op, fd, event)) {
  int rc;
  if (no_set_need_know(fd)) {
    note_plain(epfd, op);
    rc = real().epoll_ctl(epfd, op, fd, event);
  } else {
    rc = control(epfd, op, fd, event);
  }
  if (rc == 0 && !is_seen_set(epfd)) saw_set(epfd);
  return rc;
}

CLAN_INTERPOSED(int, epoll_wait, (int epfd, epoll_event* events, int most, int timeout),
                (epfd, events, most, timeout)) {
  return wait_in_set(epfd, events, most, ns_of_ms(timeout), nullptr,
                     [epfd](epoll_event* to, int n, std::int64_t left) {
                       return real().epoll_wait(epfd, to, n, ms_of_ns(left));
                     });
}

CLAN_INTERPOSED(int, epoll_pwait,
                (int epfd, epoll_event* events, int most, int timeout, const sigset_t* mask),
                (epfd, events, most, timeout, mask)) {
  return wait_in_set(epfd, events, most, ns_of_ms(timeout), mask,
                     [epfd, mask](epoll_event* to, int n, std::int64_t left) {
                       return real().epoll_pwait(epfd, to, n, ms_of_ns(left), mask);
                     });
}

CLAN_INTERPOSED(int, epoll_pwait2,
                (int epfd, epoll_event* events, int most, const timespec* timeout,
                 const sigset_t* mask),
                (epfd, events, most, timeout, mask)) {
  std::int64_t ns;
  if (!nanoseconds(timeout, &ns)) return -1;
  return wait_in_set(epfd, events, most, ns, mask,
                     [epfd, mask](epoll_event* to, int n, std::int64_t left) {
                       const timespec ts = as_timespec(left < 0 ? 0 : left);
                       return real().epoll_pwait2(epfd, to, n, left < 0 ? nullptr : &ts, mask);
                     });
}
