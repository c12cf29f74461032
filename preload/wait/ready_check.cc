#include "wait/ready_check.h"

#include <poll.h>

#include <algorithm>

#include "clan/detail/clock.h"
#include "kernel/tcp.h"
#include "stream/bell.h"
#include "stream/going_back.h"
#include "stream/readiness.h"
#include "tcp/tcp_backlog.h"
#include "wait/poll_moved.h"
#include "wait/registration.h"
#include "wait/set_lock.h"

namespace clan::preload {

std::uint64_t in_stamp(int fd, const Socket& s) {
  constexpr std::uint64_t kFarApart = 0x9e37'79b9'7f4a'7c15u;  // from the pipe's counts
  const std::uint64_t of_tcp = reads_tcp(s) ? arrived(fd) * kFarApart : 0;
  const std::uint64_t given_up =
      s.going_back.load(std::memory_order_relaxed) * (kFarApart * kFarApart);
  const auto& peer = s.pipe.page().ends[1 - s.pipe.end()].sender;
  // relaxed: its record moves the tail
  const bool told_in_pipe = peer.ended.load(std::memory_order_relaxed) == 1;
  // relaxed: stored before the kernel wakes sleepers
  const bool shut = s.shut_read.load(std::memory_order_relaxed);
  // order: what is read later is at least as new as this tail
  return of_tcp + given_up + peer.tail.load(std::memory_order_acquire) * 16 + (shut ? 8u : 0u) +
         (reads_tcp(s) ? 0u : 4u) + ((s.kernel_end || s.kernel_error) && !told_in_pipe ? 2u : 0u) +
         (reset_of(s) != 0 ? 1u : 0u);
}

bool has_edge(const Socket& s, const ReportedEdges& told, std::uint64_t in_stamp,
              std::uint32_t ready) {
  const bool room = (ready & (EPOLLOUT | EPOLLWRNORM)) != 0;
  if (room && !(told.out && s.full.load(std::memory_order_relaxed) == told.full)) return true;
  return (ready & kForReading) != 0 && in_stamp != told.in;
}

ReadyEvent ready_event_of(Interest& i) {
  ReadyEvent found;
  found.interest = &i;
  if (i.fired || !i.moved) return found;
  Socket& s = *i.socket;
  if (quiet(i)) return found;
  if (is_due(s)) note_due(i.fd, s);
  const bool by_edges = (i.events & EPOLLET) != 0;
  // The peer's switch is no edge: it is noticed first.
  if (by_edges && reads_tcp(s)) look_at_tcp(i.fd, s);
  // Read first: what comes during the check is an edge of its own.
  if (by_edges) found.edge = in_stamp(i.fd, s);
  // poll() has the same bits.
  const auto ready = static_cast<std::uint32_t>(ready_now(i.fd, s, static_cast<short>(i.events)));
  if (!s.shared()) {
    watch_kernel(i);
    return found;
  }
  found.event.events = by_edges && !has_edge(s, i.told, found.edge, ready) ? 0 : ready;
  return found;
}

void take_news(const Interest& i) {
  Socket& s = *i.socket;
  if (is_due(s)) return note_due(i.fd, s);
  look_at_tcp(i.fd, s);
}

void mark_reported(const ReadyEvent& found, std::uint64_t stamp) {
  Interest& i = *found.interest;
  const std::uint32_t ready = found.event.events;
  const bool by_edges = (i.events & EPOLLET) != 0;
  i.since = stamp;
  i.listed = !by_edges;
  i.heard_ns = i.set->now();
  if (by_edges && (ready & kForReading) != 0) i.told.in = found.edge;
  if (by_edges && (ready & EPOLLOUT) != 0) {
    i.told.out = true;
    i.told.full = i.socket->full.load(std::memory_order_relaxed);
  }
  if ((i.events & EPOLLONESHOT) != 0) i.fired = true;
}

namespace {

// Whether its next news may come without a ring: bytes in the pipe were announced while another
// thread read, or still reads, TCP's bytes before them.
bool may_come_unrung(const Interest& i) {
  const Socket& s = *i.socket;
  const PipeFront front = s.pipe.front();
  if (i.fired || front == PipeFront::kNothing) return false;
  if (reads_tcp(s)) return true;
  const bool unasked = (i.events & (EPOLLIN | EPOLLRDNORM)) == 0;
  // After kLeave, TCP's bytes wake.
  if (unasked || front == PipeFront::kLeave || (front == PipeFront::kBytes && !enough_bytes(s)))
    return false;
  return (i.events & EPOLLET) == 0 || has_edge(s, i.told, in_stamp(i.fd, s), EPOLLIN);
}

}  // namespace

bool waits_for_tcp_room(const Interest& i) {
  return !i.fired && wants_room(i) && sends_tcp(*i.socket);
}

std::int64_t longest_sleep(const Interest& i) {
  const Socket& s = *i.socket;
  if (is_going_back(s) || is_due(s)) return kGoingBackNs;
  const bool has_bell = i.fired || i.by_bell;
  if (!has_bell || may_come_unrung(i)) return kWithoutBellMs * std::int64_t{1'000'000};
  if (!wants_room(i)) return kNoCap;
  return waits_for_tcp_room(i) ? 10'000'000 : kNoCap;
}

std::int64_t longest_sleep(const Set& set) {
  std::int64_t longest = kNoCap;
  for (std::uint32_t k = 0; k < set.watched.count; ++k)
    longest = std::min(longest, longest_sleep(*set.watched.at[k]));
  return longest;
}

void arm(Interest& i) {
  i.heard_ns = i.set->now();
  if (reads_tcp(*i.socket) || waits_for_tcp_room(i) || is_going_back(*i.socket)) return;
  if (!i.fired) {
    if (!watches_bell(i)) return;
    i.socket->pipe.keep_wanted(wants_room(i));
    if (is_ready(i) || !i.moved || t_due.count > 0) return;
  }
  unwatch(i);
}

bool anything(Set& set) {
  for (std::uint32_t k = 0; k < set.watched.count;) {
    Interest& i = *set.watched.at[k];
    if (is_ready(i)) return true;
    // It may have gone back to TCP, and another one taken its place.
    if (k < set.watched.count && set.watched.at[k] == &i) ++k;
  }
  return false;
}

bool prepare(Set& set) {
  ++set.sleepers;
  if (set.watched.count > 0) set.set_now(monotonic_ns());
  // Backwards, as arming removes from the list.
  for (std::uint32_t k = set.watched.count; k-- > 0;) {
    Interest& i = *set.watched.at[k];
    // Spares a loop that sleeps between other events this one's memory.
    if (quiet_for_long(i)) {
      arm(i);
      if (k >= set.watched.count || set.watched.at[k] != &i) continue;
    }
    if (i.fired) continue;
    auto events = static_cast<short>(i.events);
    if (set.polled != nullptr) {
      set.polled->lie_down(i);
    } else {
      events |= POLLIN | POLLRDHUP;
    }
    (void)watches_bell(i);
    (void)prepare_sleep(*i.socket, events);
  }
  return !anything(set);
}

void awake(Set& set) {
  if (set.polled != nullptr) set.polled->get_up();
  --set.sleepers;
  for (std::uint32_t k = 0; k < set.watched.count; ++k)
    set.watched.at[k]->socket->pipe.unwant_data();
}

}  // namespace clan::preload
