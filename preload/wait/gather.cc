#include "wait/gather.h"

#include <algorithm>
#include <utility>

#include "clan/detail/clock.h"
#include "clan/face/pipe.h"
#include "os/sys.h"
#include "state/socket.h"
#include "stream/ending.h"
#include "table/fd_table.h"
#include "tcp/tcp_backlog.h"
#include "wait/event_order.h"
#include "wait/list.h"
#include "wait/poll_moved.h"
#include "wait/ready_check.h"
#include "wait/registration.h"
#include "wait/set_lock.h"

namespace clan::preload {
namespace {

/// how long the kernel may go unasked if all have moved: kCheckNs for ends, this for bells
constexpr std::uint64_t kBellsNs = 10'000;

/// Stamps wrap, in at least twenty hours: after kLongNs without a wait, older ones are forgotten.
constexpr std::uint64_t kLongNs = 600'000'000'000, kLongStamp = std::uint64_t{1} << 40;

constexpr std::uint32_t kArmedFew = 64;
constexpr std::uint32_t kWatchedFew = 4;  ///< too few to matter

// The bell was rung, or the peer has gone.
void note_ring(const Set& set, Interest& i) {
  watch(i);
  i.rung_in = set.round;
}

// The kernel watches the socket for the peer's end too.
void note_bell(const Set& set, Interest& i) {
  note_ring(set, i);
  note_checked(*i.socket, set.now());
}

// One bell serves all descriptors of the socket. Returns one of them, or null.
Interest* note_bells(const Set& set, const Socket& s) {
  Interest* one = nullptr;
  (void)find_interest(s, [&](Interest& i) {
    if (i.set != &set || !i.moved || i.parked) return false;
    note_bell(set, i);
    one = &i;
    return false;
  });
  return one;
}

// Whether the kernel reported it earlier in this gather(), as it does while it holds. `end`: of
// what it reported earlier. Descriptors may have the same data: each is found once per answer
// (`asks`). `*again`: it has a place in our answer.
bool is_known(const Set& set, std::uint32_t end, std::uint32_t asks, const epoll_event& event,
              bool* again) {
  for (std::uint32_t k = 0; k < end; ++k) {
    ReadyEvent& found = set.found.at[k];
    const bool same = found.interest == nullptr && found.event.data.u64 == event.data.u64;
    if (!same || found.index == asks) continue;
    *again = found.event.events != 0;
    found.event.events |= event.events;
    found.index = asks;
    return true;
  }
  return false;
}

// A moved socket has news on TCP: bytes from before the switch, or the end.
void take_in_tcp(Set& set, Interest& i, const KernelOrder& order) {
  ReadyEvent found = ready_event_of(i);
  found.event.data = i.data;
  order.place(found);
  if (!i.moved) {  // back on TCP: keeps the place, for is_known() when the kernel reports it
    found.interest = nullptr;
    found.event.events = 0;
    set.found.at[set.found.count++] = found;
    return;
  }
  if ((found.event.events & ~(EPOLLOUT | EPOLLWRNORM)) == 0) return;
  if (!i.listed) i.since = found.since;  // in case this answer leaves it out
  found.since = i.since;
  set.found.at[set.found.count++] = found;
  i.found_in = set.round;
}

// It was found before the kernel reported its end.
void look_again(Set& set, Interest& i) {
  const ReadyEvent now = ready_event_of(i);
  for (std::uint32_t k = 0; k < set.found.count && now.event.events != 0; ++k) {
    ReadyEvent& found = set.found.at[k];
    if (found.interest != &i) continue;
    found.event.events = now.event.events;
    found.edge = now.edge;
  }
}

// Takes in the kernel's `n` events of its `asks`th answer. Returns how many are plain.
int take_in(Set& set, std::uint32_t asks, const epoll_event* events, int n) {
  const std::uint32_t first = set.found.count;
  int plain = 0;
  KernelOrder order(order_stamp());
  for (int k = 0; k < n; ++k) {
    if (!has_our_tag(events[k])) {
      bool again = false;
      const bool known = is_known(set, first, asks, events[k], &again);
      if (!known) set.found.at[set.found.count++] = order.plain(events[k]);
      if (!again) ++plain;
      continue;
    }
    const bool by_bell = (events[k].data.u64 & kOfBell) != 0;
    const int fd = static_cast<int>(events[k].data.u64 & (kOfBell - 1));
    // Not one that is being closed: the closing thread may wait for the lock.
    const SocketRef s = set.polled != nullptr ? SocketRef() : acquire(fd, false);
    Interest* const i = s && by_bell            ? note_bells(set, *s)
                        : s                     ? find(set, s.get(), fd)
                        : set.polled != nullptr ? set.polled->of(fd)
                                                : nullptr;
    if (i == nullptr || !i->moved) continue;
    if (i->parked) {
      i->missed = true;
      continue;
    }
    if (!by_bell) {
      note_ring(set, *i);
      take_news(*i);
    } else if (set.polled != nullptr) {
      note_bell(set, *i);
    }
    if (i->found_in == set.round && (events[k].events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) != 0)
      look_again(set, *i);
    const Socket& socket = *i->socket;
    const PipeStamp stamp = socket.shared() ? socket.pipe.front_stamp() : PipeStamp{};
    if (stamp.word != 0) {
      order.ring(set.found.at + first, set.found.at + set.found.count, stamp.time());
    } else if (i->found_in != set.round && !by_bell) {
      take_in_tcp(set, *i, order);
    }
  }
  return plain;
}

// Checks the watched ones not found yet. `first`: for the first time in this gather().
void find_ready(Set& set, bool first) {
  for (std::uint32_t k = 0; k < set.watched.count;) {
    Interest& i = *set.watched.at[k];
    if (i.found_in != set.round) {
      ReadyEvent found = ready_event_of(i);
      if (found.event.events != 0) {
        const bool of_pipe = (found.event.events & EPOLLIN) != 0 && !reads_tcp(*i.socket);
        const PipeStamp stamp = of_pipe ? i.socket->pipe.front_stamp() : PipeStamp{};
        found.event.data = i.data;
        found.since = i.listed ? i.since : later(stamp, i.since);
        found.last_kernel_write = stamp;
        set.found.at[set.found.count++] = found;
        i.found_in = set.round;
        // Reported or written before the kernel answered; nobody else knows about room.
        const bool old = i.listed || i.rung_in == set.round ||
                         (found.event.events & ~(EPOLLOUT | EPOLLWRNORM)) == 0;
        if (!old) set.note_happened(stamp.word != 0 ? stamp.time() : order_stamp());
      } else {
        if (first) i.listed = false;
        if (first && set.watched.count > kWatchedFew && i.watched_at != Interest::kNowhere &&
            quiet_for_long(i)) {
          arm(i);
        }
      }
    }
    // Otherwise another one has taken its place.
    if (k < set.watched.count && set.watched.at[k] == &i) ++k;
  }
}

// Whether more wait for their bells than watch_armed() checks.
bool many_are_armed(const Set& set) { return set.moved - set.watched.count > kArmedFew; }

// What holds anyway, like room, does not rule out a reset.
bool holds_anyway(const ReadyEvent& found) {
  if (found.interest == nullptr) return false;
  const Socket& s = *found.interest->socket;
  // relaxed: a hint
  return has_ended(s) || s.shut_read.load(std::memory_order_relaxed) ||
         (found.event.events & ~(EPOLLOUT | EPOLLWRNORM)) == 0;
}

// The kernel may know more: about plain descriptors always, about moved sockets their end.
bool kernel_is_due(Set& set) {
  const std::uint64_t unasked_ns = set.now() - set.asked_ns;
  const bool unsaid = set.polled != nullptr &&
                      std::any_of(set.found.at, set.found.at + set.found.count, holds_anyway);
  if (!unsaid && !has_plain(set) && unasked_ns < (many_are_armed(set) ? kBellsNs : kCheckNs))
    return false;
  set.asked_ns = set.now();
  return true;
}

// Reports at most `most` of what was found. Never leaves out what the kernel reported, as it will
// not again. `*all`: nothing is left out.
int report(Set& set, epoll_event* events, int most, std::uint64_t low, bool* all) {
  List<ReadyEvent>& found = set.found;
  found.count = static_cast<std::uint32_t>(
      std::remove_if(found.at, found.at + found.count,
                     [](const ReadyEvent& one) { return one.event.events == 0; }) -
      found.at);
  if (found.count > 1 && set.polled == nullptr) put_in_order(found.at, found.count, low);
  auto left_out = found.count > static_cast<std::uint32_t>(most) ? found.count - most : 0;
  *all = left_out == 0;
  for (std::uint32_t k = found.count; left_out > 0 && k-- > 0;) {
    if (found.at[k].interest == nullptr) continue;
    std::copy(found.at + k + 1, found.at + found.count, found.at + k);
    --found.count;
    --left_out;
  }
  const std::uint64_t now = order_stamp();
  for (std::uint32_t k = 0; k < found.count; ++k) {
    if (found.at[k].interest != nullptr)
      mark_reported(found.at[k], (now + k) & PipeStamp::kTimeMask);
    events[k] = found.at[k].event;
  }
  return static_cast<int>(std::exchange(found.count, 0));
}

// Puts the plain events back at `events`, as the kernel will not report them again.
int keep_plain(Set& set, epoll_event* events) {
  int n = 0;
  for (std::uint32_t k = 0; k < set.found.count; ++k) {
    const ReadyEvent& found = set.found.at[k];
    if (found.interest == nullptr && found.event.events != 0) events[n++] = found.event;
  }
  set.found.count = 0;
  return n;
}

// The kernel is not asked for rings in this call: watches armed ones with news, if few are armed.
void watch_armed(Set& set) {
  if (many_are_armed(set)) return;
  for (std::uint32_t k = 0; k < set.interests.count; ++k) {
    Interest& i = *set.interests.at[k];
    const bool armed = i.moved && !i.parked && i.watched_at == Interest::kNowhere;
    if (armed && !i.fired && !quiet(i)) watch(i);
  }
}

// No moved socket has news.
bool all_quiet(Set& set) {
  for (std::uint32_t k = 0; k < set.watched.count; ++k) {
    Interest& i = *set.watched.at[k];
    if (!quiet(i)) return false;
    i.listed = false;
  }
  return true;
}

}  // namespace

int gather(Set& set, epoll_event* events, int most, int told, std::uint64_t before,
           bool kernel_is_asked_later, bool due_first) {
  if (kernel_is_asked_later && told < 0 && !set.plain_told && all_quiet(set)) return 0;
  ++set.round;
  set.found.count = 0;
  // One descriptor's ring may have all of its socket watched. poll() has enough room.
  const std::uint32_t most_moved = std::max(set.watched.count, set.interests.count);
  if (!set.found.reserve(most_moved)) return without_ours(events, told);
  const std::uint64_t last = set.now();
  set.set_now(monotonic_ns());
  if (set.now() - last > kLongNs) set.looked = (order_stamp() - kLongStamp) & PipeStamp::kTimeMask;
  const std::uint64_t low = set.happened = set.looked;
  const bool kernel_first = told >= 0 || set.kernels_turn;
  int room = most;  // for what the kernel tells
  if (!kernel_first) {
    watch_armed(set);
    find_ready(set, true);
    room -= static_cast<int>(std::min(set.found.count, static_cast<std::uint32_t>(most)));
  }
  set.plain_told = false;
  for (std::uint32_t asks = 1; asks <= 16 && room > 0; ++asks, told = -1) {
    if (told < 0) {
      before = order_stamp() & PipeStamp::kTimeMask;
      KeepErrno keep;
      const bool due = kernel_is_due(set);
      told = due ? ask_kernel(set, events, room) : 0;
      if (!due) watch_armed(set);
    }
    if (told < room) {
      set.looked = before;
    } else {
      set.note_happened(order_stamp());
    }
    if (told > 0) {
      if (!set.found.reserve(set.found.count + most_moved + told)) {
        return without_ours(events, told);
      }
      const int plain = take_in(set, asks, events, told);
      set.plain_told |= plain > 0;
      room -= plain;
    }
    find_ready(set, kernel_first && asks == 1);
    if (!PipeStamp::before(set.looked, set.happened)) break;  // the kernel knows no more
  }
  if (due_first && t_due.count > 0) return -1 - keep_plain(set, events);
  if (set.found.count == 0) return 0;
  bool all = true;
  const int n = report(set, events, most, low, &all);
  set.kernels_turn = set.polled == nullptr && (all || !kernel_first);
  return n;
}

bool has_plain(const Set& set) {
  return set.plain.load(std::memory_order_relaxed) || set.use != nullptr ||
         set.moved < set.interests.count;
}

void fetch_ahead(const Set& set) {
  constexpr std::uint32_t kFew = 4;
  for (std::uint32_t k = 0; k < std::min(set.watched.count, kFew); ++k)
    set.watched.at[k]->socket->pipe.fetch_ahead();
}

}  // namespace clan::preload
