// epoll: the kernel's sets hold the application's descriptors, as it put them there. A socket that
// has moved is registered for TCP's news alone, with our tag, and its bell beside it; what the
// application asked for is kept here and answered from the pipe. So plain descriptors stay the
// kernel's, and sets in sets do: the sockets of a set that is polled, or in another set, go back to
// TCP and stay there (take_off_pipes()).
//
// Processes that share a set over fork: what one of them asks for holds for all, and the others do
// not see it here. So as soon as a second one uses such a set, the sockets in it go back to TCP and
// stay there. Mostly only one does: a server that forks helpers, or whose children make sets of
// their own.
//
// Edges: a new record of the peer is an edge for reading, a send that found no room makes the next
// room an edge for writing.
//
// What a wait costs does not depend on how many sockets have moved. Each wait checks those that are
// *watched* in shared memory; there are few, those with recent events. The others are
// *armed*: their peers ring with the next bytes, which the kernel reports, and then they are
// watched again.
//
// What one wait answers is a snapshot: whatever happened before an event that it reports is
// reported too, or has been (gather()). Its events are in the order in which they became ready
// (event_order.h).
//
// A thread may sleep in a set while another one asks for more in it: what is newly asked for is
// prepared as prepare() does for what was asked for before, and checked; the kernel then wakes the
// sleeper (tell_sleepers()).
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>

#include "clan/face/pipe.h"
#include "clan/face/wait.h"
#include "kernel/sock_diag.h"
#include "state/socket.h"
#include "wait/event_order.h"
#include "wait/list.h"

namespace clan::preload {

struct Set;
class PolledSet;

/// A TCP socket in an epoll set, moved or not.
struct Interest {
  static constexpr std::uint32_t kNowhere = ~0u;
  Socket* socket = nullptr;
  Set* set = nullptr;
  int fd = -1;
  std::uint32_t events = 0;
  epoll_data_t data{};
  std::uint32_t index = 0;  ///< in its set
  bool moved = false;
  bool fired = false;  ///< EPOLLONESHOT: says nothing until it is modified
  /// the application has taken it out of the set; in the kernel it is still there
  bool parked = false;
  bool by_bell = false;  ///< the kernel watches the bell of this end in the set, too
  bool missed = false;   ///< the kernel has reported it meanwhile, and does not again
  std::uint32_t watched_at = kNowhere;  ///< in Set::watched
  std::uint64_t heard_ns = 0;           ///< when it last said something, or was asked to
  std::uint32_t found_in = 0;           ///< Set::round in which gather() has found it ready
  std::uint32_t rung_in = 0;            ///< or in which the kernel has reported a ring
  std::uint64_t since = 0;  ///< order_stamp() of when it was asked for or reported, or TCP had news
  bool listed = false;      ///< reported, and ready at each check since
  ReportedEdges told;       ///< to the application
  Interest* next_of_socket = nullptr;
};

/// What processes know of each other that share a set over fork.
struct SetUse {
  std::atomic<pid_t> user{0};        ///< the first to use it since
  std::atomic<bool> several{false};  ///< another one does too
  std::atomic<bool> noticed{false};  ///< and the first has noticed
};

struct Set {
  /// descriptors of it; none: closed, while a thread sleeps in it
  int names = 0;
  int epfd = -1;                ///< one of them
  PolledSet* polled = nullptr;  ///< that it belongs to: one thread's, for one poll()
  /// its descriptors count as one, and threads that come back to it
  int refs = 0;
  std::atomic<std::uint32_t> moved{0};  ///< of its interests; written under the lock
  std::uint32_t round = 0;              ///< of gather()
  /// order_stamp() before the kernel was last asked for all it knew
  std::uint64_t looked = 0;
  bool plain_told = false;     ///< the last answer had events of the kernel's alone
  std::uint64_t asked_ns = 0;  ///< when it was last asked at all
  std::uint64_t happened = 0;  ///< what has been found since, at the latest; see gather()
  void note_happened(std::uint64_t stamp) {
    stamp &= PipeStamp::kTimeMask;
    if (PipeStamp::before(happened, stamp)) happened = stamp;
  }
  /// to be asked although what has moved fills the answer
  std::atomic<bool> kernels_turn{true};
  /// descriptors may be in it of which only the kernel knows
  std::atomic<bool> plain{true};
  std::atomic<std::uint32_t> changes{0};     ///< of what is in it, for looks without the lock
  std::atomic<std::uint32_t> remembered{0};  ///< interests.count, for a glance without the lock
  std::atomic<std::uint64_t> now_ns{0};      ///< at the last wait, or nearly
  std::uint64_t now() const { return now_ns.load(std::memory_order_relaxed); }
  void set_now(std::uint64_t ns) { now_ns.store(ns, std::memory_order_relaxed); }
  /// it is polled, or in another set: what is in it is the kernel's alone
  std::atomic<bool> on_tcp{false};
  int sleepers = 0;       ///< threads in the kernel's wait, or nearly
  SetUse* use = nullptr;  ///< if it has lived through a fork
  /// several use it, and its sockets are on their way to TCP
  std::atomic<bool> taken_back{false};
  List<Interest*> interests;  ///< all
  List<Interest*> watched;    ///< moved ones
  List<ReadyEvent> found;     ///< of the gather() under way
  std::optional<Waiter> waiter;
  std::optional<Waiter> remote_waiter;  ///< when one of what is watched is remote
};

/// What is ours: a tag, no address, and data by a chance of 1 in 2^42; below it whose it is.
constexpr std::uint64_t kTagged = 1u << 22, kOfBell = 1u << 21;
constexpr std::uint64_t kTag = 0xc1a4'5e7b'0d40'0000u;

constexpr int kMostSets = 65536;
/// Sets by descriptor.
extern constinit std::atomic<Set*> sets[kMostSets];
/// Threads in the kernel's wait for a set of which nothing is remembered, by Set::epfd, not locked.
extern constinit std::atomic<std::uint32_t> plain_sleepers[kMostSets];
/// No set or sleeper has this number or a higher one, as far as reach() knows.
int sets_below();
void reach(int epfd);

inline Set* find(int epfd) {
  if (epfd < 0 || epfd >= kMostSets) return nullptr;
  // PAIR preload.sets: sees what was made
  return sets[epfd].load(std::memory_order_acquire);
}

/// Returns this set's state, or makes one; null: no memory.
Set* make(int epfd);

Interest* find(Set& set, const Socket* s, int fd);
/// The first of a socket's interests that `which` names, or null. Under the lock of its set.
template <typename Which>
Interest* find_interest(const Socket& s, const Which& which) {
  const std::lock_guard listed(s.listing);
  Interest* i = s.interests;
  while (i != nullptr && !which(*i)) i = i->next_of_socket;
  return i;
}

/// Puts it into the set, and into the list of its socket. False: no memory.
bool add(Set& set, Interest* i);

/// Null: no memory.
Interest* new_interest();
void remove(Interest* i);

/// Checks it from now on.
void watch(Interest& i);
void unwatch(Interest& i);

/// Under the lock.
void release(Set& set);

inline bool wants_room(const Interest& i) { return (i.events & (EPOLLOUT | EPOLLWRNORM)) != 0; }

/// Sockets have been put into this epoll set, or it is polled, or in another one.
inline bool known_epoll(int fd) { return find(fd) != nullptr; }

/// An epoll descriptor goes, or gets another name.
void forget_epoll(int fd);
void forget_epoll_range(unsigned first, unsigned last);
void duplicate_epoll(int from, int to);

}  // namespace clan::preload
