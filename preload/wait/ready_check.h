// Checks of the sockets in a set: what is ready, what is an edge, whether a thread may sleep.
#pragma once

#include <sys/epoll.h>

#include <cstdint>

#include "state/socket.h"
#include "stream/ending.h"
#include "wait/epoll_set.h"
#include "wait/event_order.h"

namespace clan::preload {

constexpr std::int64_t kNoCap = INT64_MAX;
constexpr std::uint32_t kForReading = EPOLLIN | EPOLLRDNORM | EPOLLRDHUP | EPOLLHUP | EPOLLERR;

/// Changes with every edge for reading. The last byte of TCP is one, as it uncovers the pipe; so is
/// a shutdown of reading here.
std::uint64_t in_stamp(int fd, const Socket& s);

/// Whether nothing can have happened, by a few loads.
inline bool quiet(const Interest& i) {
  const Socket& s = *i.socket;
  if (!is_idle_fast(s)) return false;
  if (!wants_room(i)) return true;
  return (i.events & EPOLLET) != 0 && i.told.out &&
         i.told.full == s.full.load(std::memory_order_relaxed);
}

/// Whether something of `ready` is new since `told`. Then all of it is reported, as in the kernel.
bool has_edge(const Socket& s, const ReportedEdges& told, std::uint64_t in_stamp,
              std::uint32_t ready);

/// Returns what an interest is ready for. Under the lock. Notes what is_due() for its socket, for
/// Guard to do. Only mark_reported() counts it as reported.
ReadyEvent ready_event_of(Interest& i);

/// Takes in a report of the kernel: notes what is due, or else the end.
void take_news(const Interest& i);

/// Marks it as reported at `stamp`.
void mark_reported(const ReadyEvent& found, std::uint64_t stamp);

inline bool is_ready(Interest& i) { return ready_event_of(i).event.events != 0; }

/// Whether its room is TCP's, which the kernel knows but is not asked for.
bool waits_for_tcp_room(const Interest& i);

/// Returns how many ns a thread may rely on the kernel to report it; for a set, all watched ones.
std::int64_t longest_sleep(const Interest& i);
std::int64_t longest_sleep(const Set& set);

constexpr std::uint64_t kQuietNs = 5'000'000;  ///< without an event, until a socket is armed
inline bool quiet_for_long(const Interest& i) {
  return i.set->polled == nullptr && i.set->now() - i.heard_ns > kQuietNs;
}

/// Stops checking it, if its peer will ring for the next news.
void arm(Interest& i);

/// Whether a watched socket is ready.
bool anything(Set& set);

/// Asks the peers of all watched sockets to ring, before a thread sleeps in the set. False:
/// something is ready already. awake() follows. Both under the lock.
bool prepare(Set& set);
void awake(Set& set);

}  // namespace clan::preload
