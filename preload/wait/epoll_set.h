// epoll sets. The kernel's sets hold the application's descriptors as it put them there; plain ones
// stay the kernel's alone. A moved socket is registered for TCP's news only, with our tag, and its
// bell beside it; what the application asked for is kept here and answered from the pipe. Only the
// kernel can report a set as ready: so the sockets of a set that is polled, or in another set, go
// back to TCP and stay there (take_off_pipes()).
//
// A set may be shared over fork. What one process asks for holds for all, but the others do not see
// it here. So once a second process uses such a set, its sockets go back to TCP and stay there.
// Mostly only one does, as children are helpers or make sets of their own.
//
// Edges: a new record of the peer is an edge for reading; room after a send that found none is an
// edge for writing.
//
// The cost of a wait does not depend on the number of moved sockets. Each wait checks the *watched*
// ones in shared memory: the few with recent events. The others are *armed*: their peers ring with
// the next bytes, the kernel reports the ring, and they are watched again.
//
// The answer of a wait is a snapshot: what happened before a reported event is reported too, or has
// been (gather()). Events are in the order in which they became ready (event_order.h).
//
// While a thread sleeps in a set, another may ask for more: it does what prepare() would have done,
// checks, and wakes the sleeper by the kernel (tell_sleepers()).
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
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
  bool fired = false;  ///< EPOLLONESHOT: silent until it is modified
  /// the application has taken it out of the set, but it is still in the kernel's
  bool parked = false;
  bool by_bell = false;                 ///< the kernel watches this end's bell in the set
  bool missed = false;                  ///< the kernel reported it while parked, once
  std::uint32_t watched_at = kNowhere;  ///< in Set::watched
  std::uint64_t heard_ns = 0;           ///< its last event or request
  std::uint32_t found_in = 0;           ///< the Set::round in which gather() found it ready
  std::uint32_t rung_in = 0;            ///< the round in which the kernel reported a ring
  std::uint64_t since = 0;  ///< order_stamp() of the request, the last report, or TCP's news
  bool listed = false;      ///< reported, and ready at each check since
  ReportedEdges told;
  Interest* next_of_socket = nullptr;
};

/// What processes that share a set over fork know of each other.
struct SetUse {
  std::atomic<pid_t> user{0};        ///< its first user since the fork
  std::atomic<bool> several{false};  ///< another process uses it too
  std::atomic<bool> noticed{false};  ///< the first user has noticed that
};

struct Set {
  int names = 0;                ///< descriptors of it; 0: closed, while a thread sleeps in it
  int epfd = -1;                ///< one of them
  PolledSet* polled = nullptr;  ///< the poll() that it serves, in one thread
  int refs = 0;                 ///< threads that come back to it, and 1 for its descriptors
  std::atomic<std::uint32_t> moved{0};  ///< of its interests; written under the lock
  std::uint32_t round = 0;              ///< of gather()
  std::uint64_t looked = 0;             ///< order_stamp() before the kernel last said all it knew
  bool plain_told = false;     ///< the kernel's last answer had events of plain descriptors
  std::uint64_t asked_ns = 0;  ///< when the kernel was last asked
  std::uint64_t happened = 0;  ///< the latest time of what was found since; see gather()
  void note_happened(std::uint64_t stamp) {
    stamp &= PipeStamp::kTimeMask;
    if (PipeStamp::before(happened, stamp)) happened = stamp;
  }
  /// ask the kernel even if moved sockets fill the answer
  std::atomic<bool> kernels_turn{true};
  std::atomic<bool> plain{true};             ///< it may have descriptors that only the kernel knows
  std::atomic<std::uint32_t> changes{0};     ///< of its contents, for checks without the lock
  std::atomic<std::uint32_t> remembered{0};  ///< interests.count, for checks without the lock
  std::atomic<std::uint64_t> now_ns{0};      ///< roughly the time of the last wait
  std::uint64_t now() const { return now_ns.load(std::memory_order_relaxed); }
  void set_now(std::uint64_t ns) { now_ns.store(ns, std::memory_order_relaxed); }
  std::atomic<bool> on_tcp{false};      ///< it is polled or in another set: the kernel's alone
  int sleepers = 0;                     ///< threads in the kernel's wait, or nearly
  SetUse* use = nullptr;                ///< if it has lived through a fork
  std::atomic<bool> taken_back{false};  ///< several processes use it; its sockets go back to TCP
  List<Interest*> interests;            ///< all
  List<Interest*> watched;              ///< moved ones
  List<ReadyEvent> found;               ///< by the gather() under way
  std::optional<Waiter> waiter;
  std::optional<Waiter> remote_waiter;  ///< used if a watched socket is remote
};

/// Our data in the kernel's sets: a tag, which is no address and data by a chance of 1 in 2^42,
/// then the descriptor.
constexpr std::uint64_t kTagged = 1u << 22, kOfBell = 1u << 21;
constexpr std::uint64_t kTag = 0xc1a4'5e7b'0d40'0000u;

constexpr int kMostSets = 65536;
/// Sets by descriptor.
extern constinit std::atomic<Set*> sets[kMostSets];
/// Threads in the kernel's wait for a set that remembers nothing, by Set::epfd; without the lock.
extern constinit std::atomic<std::uint32_t> plain_sleepers[kMostSets];
/// An upper bound of the numbers of sets and sleepers, which reach() raises.
int sets_below();
void reach(int epfd);

inline Set* find(int epfd) {
  if (epfd < 0 || epfd >= kMostSets) return nullptr;
  // PAIR preload.sets: sees what was made
  return sets[epfd].load(std::memory_order_acquire);
}

/// Returns the state of a set; makes it if there is none. Null: no memory.
Set* make(int epfd);

Interest* find(Set& set, const Socket* s, int fd);
/// Returns a socket's first interest for which `which` is true, or null. Under the lock of its set.
template <typename Which>
Interest* find_interest(const Socket& s, const Which& which) {
  const std::lock_guard listed(s.listing);
  Interest* i = s.interests;
  while (i != nullptr && !which(*i)) i = i->next_of_socket;
  return i;
}

/// Puts a socket into the set, and into the list of its interests. Null: no memory.
Interest* add(Set& set, Socket& s, int fd, const epoll_event& event);
void remove(Interest* i);

/// Adds it to those that waits check, and takes it out.
void watch(Interest& i);
void unwatch(Interest& i);

/// Drops a reference, under the lock.
void release(Set& set);

inline bool wants_room(const Interest& i) { return (i.events & (EPOLLOUT | EPOLLWRNORM)) != 0; }

/// Whether a TCP socket was put into this set, or it is polled or in another one.
inline bool known_epoll(int fd) { return find(fd) != nullptr; }

/// Follow an epoll descriptor that is closed or duplicated.
void forget_epoll(int fd);
void forget_epoll_range(unsigned first, unsigned last);
void duplicate_epoll(int from, int to);

}  // namespace clan::preload
