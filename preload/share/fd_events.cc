#include "share/fd_events.h"

#include "af_clan/af_clan_table.h"
#include "clan/face/reasons.h"
#include "demote/demote.h"
#include "os/memory_owner.h"
#include "table/fd_table.h"
#include "table/internal_fds.h"
#include "table/unseen_sets.h"
#include "wait/epoll_set.h"
#include "wait/set_events.h"

namespace clan::preload {

void gone(int fd) {
  const auto number = static_cast<unsigned>(fd);
  if (is_ours(fd) && !in_borrowed_memory()) disown(number, number);
  const bool seen = known(fd) || known_epoll(fd) || is_seen_set(fd) || is_af_clan(fd);
  if (!seen || in_borrowed_memory()) return;
  forget(fd);
  forget_epoll(fd);
  forget_set(number, number);
  if (is_af_clan(fd)) forget_af_clan(fd);
}

void about_to_go(int fd) {
  if (known(fd)) before_descriptor_goes(fd);
  gone(fd);
}

void gone_range(unsigned first, unsigned last) {
  disown(first, last);
  forget_epoll_range(first, last);
  forget_set(first, last);
  forget_range(first, last);
  forget_af_clan_range(first, last);
}

void same(int from, int to) {
  if (from == to) return;
  if (in_borrowed_memory()) return leave_pipe(from, true, reasons::Why::kExecuted);
  // Standard streams of the C library and of C++ read and write past the library.
  if (to <= STDERR_FILENO) leave_pipe(from, true, reasons::Why::kStandardStream);
  if (!duplicate_entry(from, to)) {
    if (const SocketRef s = acquire(from)) never_move(from, *s, reasons::Why::kNoDescriptors);
  }
  duplicate_epoll(from, to);
  if (is_seen_set(from)) {
    saw_set(to);
  } else if (is_seen_set(to)) {
    forget_set(static_cast<unsigned>(to), static_cast<unsigned>(to));
  }
  if (af_clan_used.load(std::memory_order_relaxed)) duplicate_af_clan(from, to);
}

}  // namespace clan::preload
