// Checks of what an epoll set holds: what is ready, what of it is an edge, and whether a thread may
// sleep.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <cstring>

#include "state/socket.h"
#include "stream/ending.h"
#include "wait/epoll_set.h"
#include "wait/event_order.h"

namespace clan::preload {

constexpr std::int64_t kNoCap = INT64_MAX;
constexpr std::uint32_t kForReading = EPOLLIN | EPOLLRDNORM | EPOLLRDHUP | EPOLLHUP | EPOLLERR;

/// What changes with every edge for reading. The last byte of TCP is one: it uncovers what is in
/// the pipe. So is that reading is shut down here.
std::uint64_t in_stamp(int fd, const Socket& s);

/// Nothing can have happened, as far as a few loads tell.
inline bool quiet(const Interest& i) {
  const Socket& s = *i.socket;
  if (!is_idle_fast(s)) return false;
  if (!wants_room(i)) return true;
  return (i.events & EPOLLET) != 0 && i.told.out &&
         i.told.full == s.full.load(std::memory_order_relaxed);
}

/// By edges: something of `ready` is new since `told`. Then all of it is reported, as the kernel
/// does.
bool has_edge(const Socket& s, const ReportedEdges& told, std::uint64_t in_stamp,
              std::uint32_t ready);

/// What holds for an interest. Under the lock. Nothing of it is reported before mark_reported() is
/// called.
/// What is_due() for its socket is noted, and done behind the lock (Guard).
ReadyEvent ready_event_of(Interest& i);

/// Takes in that the kernel has reported it: notices the end. What is due comes first, and is
/// noted.
void take_news(const Interest& i);

/// It is being reported, as the one with this stamp.
void mark_reported(const ReadyEvent& found, std::uint64_t stamp);

inline bool is_ready(Interest& i) { return ready_event_of(i).event.events != 0; }

/// A socket that still sends by TCP: its room is the kernel's to tell, and we do not ask for that.
bool waits_for_tcp_room(const Interest& i);

/// For how many ns the thread may rely on the kernel to report it.
std::int64_t longest_sleep(const Interest& i);
/// The same for all that are watched in it.
std::int64_t longest_sleep(const Set& set);

constexpr std::uint64_t kQuietNs = 5'000'000;  ///< without an event, and a socket is armed
inline bool quiet_for_long(const Interest& i) {
  return i.set->polled == nullptr && i.set->now() - i.heard_ns > kQuietNs;
}

/// Stops checking it, if its peer will ring with the next news.
void arm(Interest& i);

/// Something is ready, of what has moved and is watched.
bool anything(Set& set);

/// Asks the peers of all that are watched to ring: a thread is about to sleep in the set. False:
/// something is there already. To be followed by awake(). Both under the lock.
bool prepare(Set& set);
void awake(Set& set);

}  // namespace clan::preload
