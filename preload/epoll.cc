// epoll: the kernel's sets hold the application's descriptors, as it put them there. A socket that has moved
// is registered for doorbells instead, with our tag; what the application asked for is kept here and
// answered from the pipe. So plain descriptors and nesting stay the kernel's.
//
// Processes that share a set over fork: what one of them asks for holds for all, and the others do not see it
// here. So as soon as a second one uses such a set, the sockets in it go back to TCP and stay there. Mostly
// only one does: a server that forks helpers, or whose children make sets of their own.
//
// Edges: a new record of the peer is an edge for reading, a send that found no room makes the next room an
// edge for writing.
//
// What a wait costs does not depend on how many sockets have moved. Those that are *watched* are looked at in
// shared memory each time; there are few, those with recent events. The others are *armed*: their peers ring
// a doorbell with the next bytes, which the kernel reports, and then they are watched again.
//
// What one wait answers is a snapshot: whatever happened before an event that it tells of is told of too, or has
// been (gather()). Its events stand in the order in which they became ready (event_order.h).
//
// A thread may sleep in a set while another one asks for more in it: what is newly asked for is prepared as
// prepare() does for what was asked for before, and looked at; the kernel then wakes the sleeper (tell_sleepers()).
#include "epoll.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "clan/clock.h"
#include "clan/wait.h"
#include "event_order.h"
#include "real.h"
#include "shared_pages.h"
#include "signals.h"
#include "socket.h"
#include "transfer.h"

namespace clan::preload {

struct Set;

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
  bool fired = false;   ///< EPOLLONESHOT: says nothing until it is modified
  bool parked = false;  ///< the application has taken it out of the set; in the kernel it is still there
  bool missed = false;  ///< the kernel has told of it meanwhile, and does not again
  std::uint32_t watched_at = kNowhere;  ///< in Set::watched
  std::uint64_t heard_ns = 0;           ///< when it last said something, or was asked to
  std::uint32_t found_in = 0;           ///< Set::round in which gather() has found it ready
  std::uint32_t rung_in = 0;            ///< or in which the kernel has told of a doorbell
  std::uint64_t since = 0;  ///< order_stamp() of when it was asked for, told of, or TCP had news
  bool listed = false;                  ///< told of, and ready at each look since
  bool out_told = false;
  std::uint64_t seen_in = ~std::uint64_t{0};
  std::uint32_t seen_full = 0;
  Interest* next_of_socket = nullptr;  ///< or of the set in this one
  bool nested = false;                 ///< not a socket but another set, by its descriptor
  Set* inner = nullptr;
};

/// A dense array that is never longer than kMost.
template <typename T>
struct List {
  static constexpr std::uint32_t kMost = 1u << 21;
  std::uint32_t count = 0, room = 0;
  T* at = nullptr;
  bool reserve(std::uint32_t least);  ///< room for so many
  void release();
};

/// What processes know of each other that share a set over fork.
struct SetUse {
  std::atomic<pid_t> user{0};        ///< the first to use it since
  std::atomic<bool> several{false};  ///< another one does too
  std::atomic<bool> noticed{false};  ///< and the first has noticed
};

struct Set {
  int names = 0;                        ///< descriptors of it; none: closed, while a thread sleeps in it
  int epfd = -1;                        ///< one of them
  int refs = 0;                         ///< its descriptors count as one, and threads that come back to it
  Interest* within = nullptr;           ///< as which it is in other sets
  std::atomic<std::uint32_t> moved{0};  ///< of its interests; written under the lock
  std::uint32_t round = 0;                   ///< of gather()
  std::uint64_t looked = 0;                  ///< order_stamp() before the kernel was last asked for all it knew
  std::uint64_t asked_ns = 0;                ///< when it was last asked at all
  std::uint64_t happened = 0;  ///< what has been found since, at the latest; see gather()
  void note_happened(std::uint64_t stamp) {
    stamp &= PipeStamp::kTimeMask;
    if (PipeStamp::before(happened, stamp)) happened = stamp;
  }
  std::atomic<bool> kernels_turn{true};      ///< to be asked although what has moved fills the answer
  std::atomic<bool> plain{true};             ///< descriptors may be in it of which only the kernel knows
  std::atomic<std::uint32_t> changes{0};     ///< of what is in it, for who looks without the lock
  std::atomic<std::uint32_t> remembered{0};  ///< interests.count, for a glance without the lock
  std::atomic<std::uint64_t> now_ns{0};      ///< at the last wait, or nearly
  std::uint64_t now() const { return now_ns.load(std::memory_order_relaxed); }
  void set_now(std::uint64_t ns) { now_ns.store(ns, std::memory_order_relaxed); }
  std::uint32_t nested = 0;                  ///< of its interests
  int sleepers = 0;                          ///< threads in the kernel's wait, or nearly
  SetUse* use = nullptr;                     ///< if it has lived through a fork
  std::atomic<bool> taken_back{false};       ///< several use it, and its sockets are on their way to TCP
  std::atomic<std::uint32_t> seen_moves{0};  ///< moves_of_shared() at our last look at what others have moved
  List<Interest*> interests;                 ///< all
  List<Interest*> watched;                   ///< moved ones
  List<Found> found;                         ///< of the gather() under way
  std::optional<Waiter> waiter;
};

/// A thread sleeps in a set, and in the sets in it.
struct SetSleep {
  Set* set;
  SetSleep* next;
};

namespace {

constexpr std::uint64_t kTagMask = 0xffff'0000'0000'0000u;
constexpr std::uint64_t kTag = 0xc1a4'0000'0000'0000u;  ///< no address, and no descriptor number
constexpr std::uint64_t kEndsNs = 10'000;  ///< how long the kernel may go unasked where all has moved
/// After so long nobody asks how long ago a time was: stamps wrap, half of their range is ten hours or more.
constexpr std::uint64_t kLongNs = 600'000'000'000, kLongStamp = std::uint64_t{1} << 40;
constexpr std::uint32_t kArmedFew = 64;
constexpr std::uint32_t kWatchedFew = 4;                ///< so many cost nothing that matters
constexpr std::uint64_t kQuietNs = 5'000'000;  ///< without an event, and a socket is armed

std::atomic_flag lock_word = ATOMIC_FLAG_INIT;

// initial-exec: asked on the data path
thread_local bool t_has_lock __attribute__((tls_model("initial-exec"))) = false;

// Answers to peers that leave: they may take long, so whoever has the lock puts them off until it has let go
// of it. What finds no place here is found at the next look at the socket.
struct Owed {
  static constexpr int kMost = 8;
  struct {
    int fd;
    Socket* socket;
  } to[kMost];
  int count = 0;
};
thread_local Owed t_owed __attribute__((tls_model("initial-exec")));

void pay() {
  while (t_owed.count > 0) {
    const auto [fd, socket] = t_owed.to[--t_owed.count];
    const Held owed(socket);
    if (const Held now = hold(fd); now.get() == socket) answer_leaving(fd, *socket);
  }
}

class Guard {
 public:
  Guard() {
    lock_epoll();
    t_has_lock = true;
  }
  ~Guard() {
    t_has_lock = false;
    unlock_epoll();
    if (t_owed.count > 0) pay();
  }
  /// Something has been put off: when it has been done, the sockets are to be looked at again.
  bool owes() const { return t_owed.count > 0; }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  Undisturbed undisturbed_;
};

// Sets by descriptor.
constexpr int kMostSets = 65536;
constinit std::atomic<Set*> sets[kMostSets]{};
/// Threads in the kernel's wait for a set of which nothing is remembered, by Set::epfd. They do not take the
/// lock, and find this when another set has the number.
constinit std::atomic<std::uint32_t> plain_sleepers[kMostSets]{};
std::atomic<int> sets_end{0};  ///< none has this number or a higher one

void* pages(std::size_t bytes) {
  void* memory = sys::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

template <typename T>
bool List<T>::reserve(std::uint32_t least) {
  if (least <= room) return true;
  const std::uint32_t more = std::max(64u, std::bit_ceil(least));
  auto* bigger = more > kMost ? nullptr : static_cast<T*>(pages(more * sizeof(T)));
  if (bigger == nullptr) return false;
  std::copy(at, at + count, bigger);
  release();
  at = bigger;
  room = more;
  return true;
}

template <typename T>
void List<T>::release() {
  if (at != nullptr) sys::munmap(at, room * sizeof(T));
  at = nullptr;
  room = 0;
}

namespace {

Set* find(int epfd) {
  if (epfd < 0 || epfd >= kMostSets) return nullptr;
  return sets[epfd].load(std::memory_order_acquire);
}

// Sets and interests are recycled, never unmapped.
template <typename T>
class Recycled {
 public:
  T* take() {
    if (free_ == nullptr) {
      constexpr std::size_t kBytes = 16384;
      auto* memory = static_cast<std::byte*>(pages(kBytes));
      if (memory == nullptr) return nullptr;
      for (std::size_t at = 0; at + sizeof(T) <= kBytes; at += sizeof(T)) put(memory + at);
    }
    Free* memory = free_;
    free_ = memory->next;
    return new (static_cast<void*>(memory)) T;
  }
  void give_back(T* value) {
    value->~T();
    put(value);
  }

 private:
  struct Free {
    Free* next;
  };
  void put(void* memory) { free_ = new (memory) Free{free_}; }
  Free* free_ = nullptr;
};
Recycled<Interest> interest_pool;
Recycled<Set> set_pool;
Recycled<SetSleep> sleep_pool;

// Calls `f(fd, events)` for all that is in a set, as the kernel has it. False: the kernel does not
// say.
template <typename F>
bool for_registered(int epfd, F&& f) {
  KeepErrno keep;
  char path[48], text[256];
  std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", epfd);
  const int file = static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC));
  if (file < 0) return false;
  std::size_t have = 0;
  for (long n; (n = sys::call(SYS_read, file, text + have, sizeof text - 1 - have)) > 0;) {
    have += static_cast<std::size_t>(n);
    text[have] = 0;
    char* line = text;
    for (char* end; (end = std::strchr(line, '\n')) != nullptr; line = end + 1) {
      int fd = -1;
      unsigned events = 0;
      if (std::sscanf(line, "tfd: %d events: %x", &fd, &events) == 2) f(fd, events);
    }
    have = std::strlen(line);
    std::memmove(text, line, have + 1);
    if (have == sizeof text - 1) have = 0;
  }
  sys::close(file);
  return true;
}

// As far as the kernel says.
bool is_empty(int epfd) {
  bool any = false;
  return for_registered(epfd, [&](int, unsigned) { any = true; }) && !any;
}

Set* make(int epfd) {
  if (epfd < 0 || epfd >= kMostSets) return nullptr;
  Set* set = sets[epfd].load(std::memory_order_relaxed);
  if (set != nullptr) return set;
  set = set_pool.take();
  if (set == nullptr) return nullptr;
  set->names = set->refs = 1;
  set->epfd = epfd;
  set->waiter.emplace(WaitOptions{});
  set->plain = !is_empty(epfd);
  set->seen_moves = moves_of_shared() - 1;
  sets[epfd].store(set, std::memory_order_release);
  sets_end = std::max(sets_end.load(), epfd + 1);
  return set;
}

Interest* find(Set& set, const Socket* s, int fd) {
  for (Interest* i = s->interests; i != nullptr; i = i->next_of_socket) {
    if (i->set == &set && i->fd == fd) return i;
  }
  return nullptr;
}

bool add(Set& set, Interest* i) {
  // Room in both lists, so that watch() cannot fail.
  if (!set.interests.reserve(set.interests.count + 1)) return false;
  if (!set.watched.reserve(set.interests.room) || !set.found.reserve(set.interests.room)) return false;
  set.changes.fetch_add(1, std::memory_order_relaxed);
  i->index = set.interests.count;
  set.interests.at[set.interests.count++] = i;
  set.remembered.store(set.interests.count, std::memory_order_seq_cst);
  return true;
}

// Looks at it from now on.
void watch(Interest& i) {
  i.heard_ns = i.set->now();
  if (i.watched_at != Interest::kNowhere) return;
  i.set->changes.fetch_add(1, std::memory_order_relaxed);
  List<Interest*>& list = i.set->watched;
  i.watched_at = list.count;
  list.at[list.count++] = &i;
}

void unwatch(Interest& i) {
  if (i.watched_at == Interest::kNowhere) return;
  i.set->changes.fetch_add(1, std::memory_order_relaxed);
  List<Interest*>& list = i.set->watched;
  list.at[i.watched_at] = list.at[--list.count];
  list.at[i.watched_at]->watched_at = i.watched_at;
  i.watched_at = Interest::kNowhere;
}

// Of a set that has been closed nobody knows the descriptor.
int change(const Set& set, int op, int fd, epoll_event* event) {
  if (set.names == 0) {
    errno = EBADF;
    return -1;
  }
  return sys::epoll_ctl(set.epfd, op, fd, event);
}

// What the kernel has to say, without waiting.
int ask_kernel(const Set& set, epoll_event* events, int most) {
  return set.names == 0 ? 0 : sys::epoll_wait(set.epfd, events, most, 0);
}

// Even if it cannot be modified (EPOLLEXCLUSIVE), or is not there any more (another process has taken it
// out).
void change_to(const Set& set, int fd, epoll_event* event) {
  if (change(set, EPOLL_CTL_MOD, fd, event) == 0) return;
  if (errno == EINVAL) change(set, EPOLL_CTL_DEL, fd, nullptr);
  if (errno == EINVAL || errno == ENOENT) change(set, EPOLL_CTL_ADD, fd, event);
}

std::uint64_t tag(int fd) { return kTag | static_cast<std::uint32_t>(fd); }

void remove(Interest* i) {
  Set& set = *i->set;
  if (i->moved) --set.moved;
  if (i->nested) --set.nested;
  unwatch(*i);
  set.interests.at[i->index] = set.interests.at[--set.interests.count];
  set.interests.at[i->index]->index = i->index;
  set.remembered.store(set.interests.count, std::memory_order_relaxed);
  for (Interest** p = i->nested ? &i->inner->within : &i->socket->interests; *p != nullptr;
       p = &(*p)->next_of_socket) {
    if (*p == i) {
      *p = i->next_of_socket;
      break;
    }
  }
  if (!i->nested && i->socket->interests == nullptr)
    i->socket->in_sets.store(false, std::memory_order_relaxed);
  interest_pool.give_back(i);
}

// Under the lock.
void release(Set& set) {
  if (--set.refs > 0) return;
  while (set.interests.count > 0) remove(set.interests.at[0]);
  set.interests.release();
  set.watched.release();
  set.found.release();
  set_pool.give_back(&set);
}

// EPOLLONESHOT, and the kernel has told of it already: then it asks for nothing any more.
bool is_spent(const Interest& i) {
  constexpr unsigned kHow = EPOLLET | EPOLLONESHOT | EPOLLWAKEUP | EPOLLEXCLUSIVE;
  bool spent = false;
  (void)for_registered(i.set->epfd, [&](int fd, unsigned events) {
    if (fd == i.fd) spent = (events & ~kHow) == 0;
  });
  return spent;
}

// By edges: each doorbell is one. What level there is, the pipe says.
epoll_event for_doorbells(int fd) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
  event.data.u64 = tag(fd);
  return event;
}

// It is answered from the pipe from now on: the kernel watches for doorbells.
void answer_from_pipe(Interest& i) {
  if (!i.moved) ++i.set->moved;
  i.moved = true;
  watch(i);
}

void watch_doorbells(Interest& i) {
  if (!i.moved && (i.events & EPOLLONESHOT) != 0) i.fired = is_spent(i);
  epoll_event event = for_doorbells(i.fd);
  change_to(*i.set, i.fd, &event);
  answer_from_pipe(i);
}

// The socket has gone back to TCP: the kernel watches for what the application asked for.
void watch_kernel(Interest& i) {
  if (!i.moved) return;
  KeepErrno keep;
  epoll_event event{};
  event.events = i.fired ? EPOLLONESHOT : i.events;
  event.data = i.data;
  change_to(*i.set, i.fd, &event);
  i.moved = false;
  --i.set->moved;
  i.set->note_happened(order_stamp());
  unwatch(i);
}

// What changes with every edge for reading. The last byte of TCP is one: it uncovers what is in the pipe.
std::uint64_t in_stamp(int fd, const Socket& s) {
  constexpr std::uint64_t kFarApart = 0x9e37'79b9'7f4a'7c15u;  // from all that the pipe counts
  const std::uint64_t of_tcp = reads_tcp(s) ? arrived(fd) * kFarApart : 0;
  const auto& peer = s.pipe.page().ends[1 - s.pipe.end()].sender;
  const bool told_in_pipe = peer.ended.load(std::memory_order_relaxed) == 1;  // relaxed: its record moves the tail
  return of_tcp + peer.tail.load(std::memory_order_acquire) * 8 + (reads_tcp(s) ? 0u : 4u) +
         (s.kernel_end.load() && !told_in_pipe ? 2u : 0u) + (s.kernel_error.load() ? 1u : 0u);
}

bool wants_room(const Interest& i) { return (i.events & (EPOLLOUT | EPOLLWRNORM)) != 0; }

bool anything(Set& set);

// Nothing can have happened, as far as a few loads tell.
bool quiet(const Interest& i) {
  const Socket& s = *i.socket;
  if (!nothing_new(s)) return false;
  if (!wants_room(i)) return true;
  return (i.events & EPOLLET) != 0 && i.out_told && i.seen_full == s.full.load(std::memory_order_relaxed);
}

constexpr std::uint32_t kForReading = EPOLLIN | EPOLLRDNORM | EPOLLRDHUP | EPOLLHUP | EPOLLERR;

// By edges: something of `ready` is new. Then all of it is told, as the kernel does.
bool has_edge(const Interest& i, std::uint64_t in_stamp, std::uint32_t ready) {
  const bool room = (ready & (EPOLLOUT | EPOLLWRNORM)) != 0;
  if (room && !(i.out_told && i.socket->full.load(std::memory_order_relaxed) == i.seen_full)) return true;
  return (ready & kForReading) != 0 && in_stamp != i.seen_in;
}

// What holds for an interest. Under the lock. Nothing has been told of it before told() is called.
Found look_at(Interest& i, bool look) {
  Found found;
  found.interest = &i;
  if (i.fired || !i.moved) return found;
  if (i.nested) {
    if (anything(*i.inner)) found.event.events = i.events & (EPOLLIN | EPOLLRDNORM);
    return found;
  }
  Socket& s = *i.socket;
  if (!look && quiet(i)) return found;
  const std::uint32_t wanted =
      (i.events & (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLRDNORM | EPOLLWRNORM)) | EPOLLERR | EPOLLHUP;
  const bool by_edges = (i.events & EPOLLET) != 0;
  // Taken first: what comes while we look is an edge of its own.
  if (by_edges) found.edge = in_stamp(i.fd, s);
  auto ready = static_cast<std::uint32_t>(readiness(i.fd, s, look));
  if (!s.shared()) {
    watch_kernel(i);
    return found;
  }
  if ((ready & EPOLLIN) != 0) ready |= EPOLLRDNORM;
  if ((ready & EPOLLOUT) != 0) ready |= EPOLLWRNORM;
  ready &= wanted;
  found.event.events = by_edges && !has_edge(i, found.edge, ready) ? 0 : ready;
  return found;
}

// It is being reported, as the one with this stamp.
void told(const Found& found, std::uint64_t stamp) {
  Interest& i = *found.interest;
  const std::uint32_t ready = found.event.events;
  i.since = stamp;
  i.listed = (i.events & EPOLLET) == 0;
  i.heard_ns = i.set->now();
  if ((i.events & EPOLLET) != 0 && !i.nested) {
    if ((ready & kForReading) != 0) i.seen_in = found.edge;
    if ((ready & EPOLLOUT) != 0) {
      i.out_told = true;
      i.seen_full = i.socket->full.load(std::memory_order_relaxed);
    }
  }
  if ((i.events & EPOLLONESHOT) != 0) i.fired = true;
}

bool is_ready(Interest& i) { return look_at(i, false).event.events != 0; }

// A socket that still sends by TCP: its room is the kernel's to tell, and we do not ask for that.
bool waits_for_tcp_room(const Interest& i) {
  return !i.nested && !i.fired && wants_room(i) && sends_tcp(*i.socket);
}

constexpr std::int64_t kNoCap = INT64_MAX;

// For how many ns the kernel may be left to tell of it.
std::int64_t longest_sleep(const Interest& i) {
  if (i.nested || !wants_room(i)) return kNoCap;
  // Bytes of TCP that have not been read may have closed TCP's window: no doorbell comes through.
  if (reads_tcp(*i.socket)) return 1'000'000;
  // Who shares the open file may take the doorbell for our room.
  return waits_for_tcp_room(i) || i.socket->inherited.load(std::memory_order_relaxed) ? 10'000'000 : kNoCap;
}

bool quiet_for_long(const Interest& i) { return i.set->now() - i.heard_ns > kQuietNs; }

// Stops looking at it, if its peer will ring with the next news.
void arm(Interest& i) {
  i.heard_ns = i.set->now();
  if (i.nested || reads_tcp(*i.socket) || waits_for_tcp_room(i)) return;
  if (!i.fired) {
    i.socket->pipe.keep_wanted(wants_room(i));
    if (is_ready(i) || !i.moved || t_owed.count > 0) return;
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

// Asks the peers of all that are watched to ring. False: something is there already, or no memory. To be
// followed by awake(*sleep).
bool prepare(Set& set, SetSleep** sleep) {
  SetSleep* one = sleep_pool.take();
  if (one == nullptr) return false;
  *one = {&set, *sleep};
  *sleep = one;
  ++set.refs;
  ++set.sleepers;
  if (set.watched.count > 0) set.set_now(monotonic_ns());
  for (std::uint32_t k = set.watched.count; k-- > 0;) {  // from behind: what is armed leaves the list
    Interest& i = *set.watched.at[k];
    if (i.nested) {
      if (!i.fired) (void)prepare(*i.inner, sleep);
      continue;
    }
    // A loop that sleeps between other events need not touch this one's memory each time.
    if (quiet_for_long(i)) {
      arm(i);
      if (k >= set.watched.count || set.watched.at[k] != &i) continue;
    }
    if (i.fired) continue;
    short events = POLLIN | POLLRDHUP;
    if (wants_room(i)) events |= POLLOUT;
    (void)prepare_sleep(*i.socket, events);
  }
  return !anything(set);
}

// Something may come by shared memory.
bool watches_pipes(const Set& set) {
  for (std::uint32_t k = 0; k < set.watched.count; ++k) {
    const Interest& i = *set.watched.at[k];
    if (!i.nested || watches_pipes(*i.inner)) return true;
  }
  return false;
}

// The calling thread sleeps no more. Sets may have been put into others, or closed, meanwhile.
void awake(SetSleep* sleep) {
  while (sleep != nullptr) {
    Set& set = *sleep->set;
    --set.sleepers;
    for (std::uint32_t k = 0; k < set.watched.count; ++k) {
      const Interest& i = *set.watched.at[k];
      if (!i.nested) i.socket->pipe.unwant_data();
    }
    release(set);
    sleep_pool.give_back(std::exchange(sleep, sleep->next));
  }
}

// The kernel calls a set ready. For doorbells alone?
bool only_doorbells(Set& set) {
  if (anything(set)) return false;
  bool rung = false;
  for (std::uint32_t k = 0; k < set.interests.count && !rung; ++k) {
    const Interest& i = *set.interests.at[k];
    rung = i.moved && (i.nested ? i.inner->moved > 0 : doorbells_waiting(*i.socket));
  }
  pollfd p{set.epfd, POLLIN, 0};
  // Not ready at all: the event was of another descriptor with the same data.
  if (!rung || sys::poll(&p, 1, 0) == 0) return false;
  for (std::uint32_t k = 0; k < set.interests.count; ++k) {
    const Interest& i = *set.interests.at[k];
    if (i.moved && !i.nested) (void)look_at_kernel(i.fd, *i.socket);
  }
  return set.names > 0 && !anything(set) && sys::poll(&p, 1, 0) == 0;
}

// Of the kernel's events of a set: this one is of a set in it, and nothing holds there.
bool of_doorbells_in_nested(Set& set, const epoll_event& event) {
  for (std::uint32_t k = 0; k < set.interests.count && set.nested > 0; ++k) {
    const Interest& i = *set.interests.at[k];
    if (!i.nested || i.data.u64 != event.data.u64 || (i.events & EPOLLONESHOT) != 0) continue;
    if (i.inner->moved > 0 && i.inner->names > 0 && only_doorbells(*i.inner)) return true;
  }
  return false;
}

// The kernel has told of a socket that has moved.
void note_doorbell(Set& set, Interest& i, std::uint32_t events) {
  watch(i);
  i.rung_in = set.round;
  Socket& s = *i.socket;
  // Doorbells may lie there: registered by edges, this set hears of the next one all the same. Others would
  // not, nor would what the kernel has to say besides.
  constexpr std::uint64_t kMostLeft = 8;
  const std::uint64_t rung = s.theirs().words[socket_face::kDoorbells].load(std::memory_order_seq_cst);
  const std::uint64_t had = s.mine().words[socket_face::kSwallowed].load(std::memory_order_relaxed);
  const bool only_bell = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) == 0 && !reads_tcp(s) &&
                         !s.back_in.load(std::memory_order_acquire) &&
                         !s.inherited.load(std::memory_order_relaxed) && i.set->within == nullptr &&
                         (state_of(s.theirs()) & (socket_face::kLeaving | socket_face::kGone)) == 0;
  if (only_bell && rung - had <= kMostLeft) return;
  (void)look_at_kernel(i.fd, s);
}

// The kernel has told of it in an answer before, and does again as long as it holds. `end`: of what
// it told before. Several descriptors may have the same data: each is known once in the answer
// `asks`.
// `*again`: it has its place in the program's answer already.
bool is_known(const Set& set, std::uint32_t end, std::uint32_t asks, const epoll_event& event,
              bool* again) {
  for (std::uint32_t k = 0; k < end; ++k) {
    Found& found = set.found.at[k];
    const bool same = found.interest == nullptr && found.event.data.u64 == event.data.u64;
    if (!same || found.index == asks) continue;
    *again = found.event.events != 0;
    found.event.events |= event.events;
    found.index = asks;
    return true;
  }
  return false;
}

// By its tag: of a socket that has moved.
bool is_ours(const epoll_event& event) { return (event.data.u64 & kTagMask) == kTag; }

// What the kernel has told of plain descriptors, where there is no memory for more.
int without_ours(epoll_event* events, int told) {
  return told > 0 ? static_cast<int>(std::remove_if(events, events + told, is_ours) - events) : 0;
}

// The kernel's news of a socket that has moved are TCP's: bytes from before, or its end.
void take_in_tcp(Set& set, Interest& i, const KernelOrder& order) {
  Found found = look_at(i, false);
  found.event.data = i.data;
  order.place(found);
  if (!i.moved) {  // back on TCP: only the place is kept, and is_known() when the kernel tells of
                   // it again
    found.interest = nullptr;
    found.event.events = 0;
    set.found.at[set.found.count++] = found;
    return;
  }
  if ((found.event.events & ~(EPOLLOUT | EPOLLWRNORM)) == 0) return;
  if (!i.listed) i.since = found.since;  // should it be left out of this answer
  found.since = i.since;
  set.found.at[set.found.count++] = found;
  i.found_in = set.round;
}

// Takes in what the kernel has said when it was asked for the `asks`th time, `n` events at
// `events`: answers how many of them are the application's.
int take_in(Set& set, std::uint32_t asks, const epoll_event* events, int n) {
  const std::uint32_t first = set.found.count;
  int plain = 0;
  KernelOrder order(order_stamp());
  for (int k = 0; k < n; ++k) {
    if (!is_ours(events[k])) {
      if (of_doorbells_in_nested(set, events[k])) continue;
      bool again = false;
      const bool known = is_known(set, first, asks, events[k], &again);
      if (!known) set.found.at[set.found.count++] = order.plain(events[k]);
      if (!again) ++plain;
      continue;
    }
    const int fd = static_cast<int>(events[k].data.u64 & 0xffff'ffffu);
    Held s = hold(fd);
    Interest* i = s ? find(set, s.get(), fd) : nullptr;
    if (i == nullptr || !i->moved) continue;
    if (i->parked) {
      i->missed = true;
      continue;
    }
    note_doorbell(set, *i, events[k].events);
    const PipeStamp stamp = s->shared() ? s->pipe.front_stamp() : PipeStamp{};
    if (stamp.word != 0) {
      order.doorbell(set.found.at + first, set.found.at + set.found.count, stamp.time());
    } else if (i->found_in != set.round) {
      take_in_tcp(set, *i, order);
    }
  }
  return plain;
}

// Looks at what is watched and has not been found yet. `first`: for the first time in this
// gather().
void find_ready(Set& set, bool first) {
  for (std::uint32_t k = 0; k < set.watched.count;) {
    Interest& i = *set.watched.at[k];
    if (i.found_in != set.round) {
      Found found = look_at(i, false);
      if (found.event.events != 0) {
        const bool of_pipe =
            (found.event.events & EPOLLIN) != 0 && !i.nested && !reads_tcp(*i.socket);
        const PipeStamp stamp = of_pipe ? i.socket->pipe.front_stamp() : PipeStamp{};
        found.event.data = i.data;
        found.since = i.listed ? i.since : later(stamp, i.since);
        found.past_pipes = stamp;
        set.found.at[set.found.count++] = found;
        i.found_in = set.round;
        // Told of before, or written before the kernel answered; of room nobody else knows.
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
    // Else another one has taken its place.
    if (k < set.watched.count && set.watched.at[k] == &i) ++k;
  }
}

// A set in this one may have been told of from here and by the kernel.
int without_repeated_sets(const Set& set, epoll_event* events, int n) {
  for (std::uint32_t k = 0; k < set.interests.count; ++k) {
    const Interest& i = *set.interests.at[k];
    if (!i.nested) continue;
    bool told = false;
    for (int e = 0; e < n;) {
      if (events[e].data.u64 == i.data.u64 && std::exchange(told, true)) {
        events[e] = events[--n];
      } else {
        ++e;
      }
    }
  }
  return n;
}

bool has_plain(const Set& set) {
  return set.plain.load(std::memory_order_relaxed) || set.use != nullptr || set.moved < set.interests.count;
}

// See gather().
bool kernel_may_know_more(const Set& set) { return PipeStamp::before(set.looked, set.happened); }

// The kernel may know what we do not: of plain descriptors always, of sockets that have moved their end.
bool kernel_is_due(Set& set) {
  if (!has_plain(set) && set.now() - set.asked_ns < kEndsNs) return false;
  set.asked_ns = set.now();
  return true;
}

// Reports what has been found, no more than `most`. The kernel will not say again what it has said:
// of these none is left out. `*all`: nothing is.
int report(Set& set, epoll_event* events, int most, std::uint64_t low, bool* all) {
  List<Found>& found = set.found;
  found.count = static_cast<std::uint32_t>(
      std::remove_if(found.at, found.at + found.count,
                     [](const Found& one) { return one.event.events == 0; }) -
      found.at);
  if (found.count > 1) put_in_order(found.at, found.count, low);
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
    if (found.at[k].interest != nullptr) told(found.at[k], (now + k) & PipeStamp::kTimeMask);
    events[k] = found.at[k].event;
  }
  const int n = static_cast<int>(std::exchange(found.count, 0));
  return set.nested > 0 ? without_repeated_sets(set, events, n) : n;
}

// The kernel is not asked for doorbells in this call. As far as there are few armed ones, those
// with news are found.
void watch_armed(Set& set) {
  if (set.moved - set.watched.count > kArmedFew) return;
  for (std::uint32_t k = 0; k < set.interests.count; ++k) {
    Interest& i = *set.interests.at[k];
    const bool armed = i.moved && !i.nested && !i.parked && i.watched_at == Interest::kNowhere;
    if (armed && !i.fired && !quiet(i)) watch(i);
  }
}

// What one wait answers, without sleeping. Under the lock. `told`: so many events stand at `events`
// that the kernel has answered in this call, asked at `before`; <0: it has not been asked.
//
//   1  note the time   2  ask the kernel   3  look at what has moved   4  again, as long as
//   something that has been found may have happened after 1
//
// Set::looked is the 1 of the last time that 2 was answered in full, Set::happened the latest time
// at which something that has been found may have happened. What the kernel may know and we have
// not seen has happened between the two.
//
//   - What 3 has found was written at the time of its stamp; without one, at any time until now. A
//   socket for which the
//     kernel has told of a doorbell was written to before 2 ended, and so was all that was written
//     before.
//   - What the kernel told in 2 may be newer than 1, and so may be what happened before it: that 3
//   finds, as it comes
//     after 2, and asks for 4 itself.
//   - When the kernel fills the room it was given, more may wait behind: `looked` stays where it
//   was.
//   - Of a socket that goes back to TCP meanwhile only the kernel tells from then on: that happens
//   now.
//
// More may be ready than there is room for. Then the kernel comes first in one call, and what has
// moved in the next: so everybody is told of within two rounds of the set.
int gather(Set& set, epoll_event* events, int most, int told, std::uint64_t before) {
  ++set.round;
  set.found.count = 0;
  if (!set.found.reserve(set.watched.count)) return without_ours(events, told);
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
  for (std::uint32_t asks = 1; asks <= 16 && room > 0; ++asks, told = -1) {
    if (told < 0) {
      before = order_stamp() & PipeStamp::kTimeMask;
      KeepErrno keep;
      told = kernel_is_due(set) ? ask_kernel(set, events, room) : 0;
    }
    if (told < room) {
      set.looked = before;
    } else {
      set.note_happened(order_stamp());
    }
    if (told > 0) {
      if (!set.found.reserve(set.found.count + set.watched.count + told)) {
        return without_ours(events, told);
      }
      room -= take_in(set, asks, events, told);
    }
    find_ready(set, kernel_first && asks == 1);
    if (!kernel_may_know_more(set)) break;
  }
  if (set.found.count == 0) return 0;
  bool all = true;
  const int n = report(set, events, most, low, &all);
  set.kernels_turn = all || !kernel_first;
  return n;
}

// The kernel has told of something. Under the lock.
void fetch_ahead(const Set& set) {
  constexpr std::uint32_t kFew = 4;
  for (std::uint32_t k = 0; k < std::min(set.watched.count, kFew); ++k) {
    const Interest& i = *set.watched.at[k];
    if (!i.nested) i.socket->pipe.fetch_ahead();
  }
}

// A thread may be asleep in the set, or in one that this is in, and has not prepared for what is newly asked of a
// socket that has moved: does it in its place, and wakes it if there is something already. Under the lock. `look`:
// false while the socket is just moving; then the sleeper looks itself.
void tell_sleepers(Interest& i, bool look) {
  Set& set = *i.set;
  if (!i.moved || i.parked || i.fired || i.nested) return;
  if (set.sleepers == 0 && (set.epfd < 0 || plain_sleepers[set.epfd].load(std::memory_order_seq_cst) == 0)) return;
  KeepErrno keep;
  i.socket->pipe.keep_wanted(wants_room(i));
  if (look && !is_ready(i) && longest_sleep(i) == kNoCap) return;
  if (!i.moved) return;
  // To be asked for room that is always there makes the kernel tell of it at once, each time it is asked.
  epoll_event event = for_doorbells(i.fd);
  event.events |= EPOLLOUT;
  change_to(set, i.fd, &event);
}

// The kernel's wait, after prepare() if `prepared`. The thread may be cancelled there.
template <typename Sleep>
int sleep_prepared(SetSleep* prepared, Sleep&& sleep) {
  struct Awake {
    SetSleep* prepared;
    ~Awake() {
      if (prepared == nullptr) return;
      KeepErrno keep;
      Guard guard;
      awake(prepared);
    }
  } awake_after{prepared};
  return sleep();
}

// A set that the calling thread comes back to, after it has let go of the lock. As long as that it is there,
// with all that is in it, even if another thread closes it: so it is for a thread in the kernel's wait.
class InUse {
 public:
  InUse() = default;
  ~InUse() {
    if (set_ == nullptr) return;
    KeepErrno keep;
    Guard guard;
    release(*set_);
  }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;
  Set* get() const { return set_; }
  /// Both under the lock.
  void take(Set& set) {
    if (set_ == nullptr) ++set.refs;
    set_ = &set;
  }
  void drop() {
    if (set_ != nullptr) release(*std::exchange(set_, nullptr));
  }

 private:
  Set* set_ = nullptr;
};

bool sets_shared = false;  ///< there may be sets that have lived through a fork
pid_t our_pid = 0;         ///< if there are

// --- sets and sockets that processes share ------------------------------------------------------------

constexpr std::int64_t kOthersNs = 10'000'000;  ///< how long a set may go unasked while its sockets leave

// A process uses the set. True: several do. Under the lock.
bool used_by_several(Set& set) {
  if (set.use == nullptr) return false;
  SetUse& use = *set.use;
  const pid_t me = our_pid;
  pid_t user = use.user.load();
  if (!use.several.load() && user != me) {
    KeepErrno keep;
    const bool free = user == 0 || !sys::exists(user);
    if (!free || !use.user.compare_exchange_strong(user, me)) use.several.store(true);
  }
  if (!use.several.load()) return false;
  if (use.user.load() == me) use.noticed.store(true);
  return true;
}

// Calls `f(fd, socket)` for all sockets of a set that `which` names, without the lock: what it does to one
// makes `which` false of it.
template <typename Which, typename F>
bool for_sockets(Set& set, Which&& which, F&& f) {
  constexpr std::uint32_t kSome = 16;
  struct {
    int fd;
    Socket* socket;
  } some[kSome];
  bool any = false;
  for (std::uint32_t turns = 0, n = kSome; n == kSome && turns < set.interests.kMost; ++turns) {
    n = 0;
    {
      Guard guard;
      for (std::uint32_t k = 0; k < set.interests.count && n < kSome; ++k) {
        const Interest& i = *set.interests.at[k];
        if (i.nested || !which(i)) continue;
        i.socket->refs.fetch_add(1, std::memory_order_relaxed);
        some[n++] = {i.fd, i.socket};
      }
    }
    for (std::uint32_t k = 0; k < n; ++k) {
      const Held held(some[k].socket);
      f(some[k].fd, *held);
      any = true;
    }
  }
  return any;
}

// What other processes have moved of the set is moved here too. True: there was something.
bool follow_others(Set& set) {
  const std::uint32_t moves = moves_of_shared();
  if (moves == set.seen_moves) return false;
  set.seen_moves = moves;
  KeepErrno keep;
  return for_sockets(
      set, [](const Interest& i) { return !i.moved && moved_elsewhere(*i.socket); }, catch_up);
}

// The first user may be asleep in the kernel, where it waits for doorbells that any of us may take.
void wake_first_user(const Set& set) {
  KeepErrno keep;
  const int bell = static_cast<int>(sys::call(SYS_eventfd2, 1, EFD_CLOEXEC | EFD_NONBLOCK));
  if (bell < 0) return;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kTag | 0xffff'ffffu;  // no descriptor
  constexpr int kMostMs = 200;           // it may be busy, and looks before it sleeps
  if (change(set, EPOLL_CTL_ADD, bell, &event) == 0) {
    const timespec nap{0, 1'000'000};
    for (int ms = 0; ms < kMostMs && !set.use->noticed.load(); ++ms) sys::call(SYS_nanosleep, &nap, nullptr);
    change(set, EPOLL_CTL_DEL, bell, nullptr);
  }
  sys::close(bell);
}

// Several processes use the set: its sockets go back to TCP.
void take_back(Set& set) {
  if (set.taken_back.exchange(true)) return;
  for_sockets(
      set,
      [](const Interest& i) {
        const Socket& s = *i.socket;
        if (s.slot.load(std::memory_order_acquire)->pinned.load() == 0) return true;
        return s.shared() ? (state_of(s.mine()) & (socket_face::kLeaving | socket_face::kGone)) == 0
                          : moved_elsewhere(s);
      },
      [](int fd, Socket&) { leave_pipe(fd, false); });
  if (!set.use->noticed.load()) wake_first_user(set);
}

// A raw event of a socket that another process had moved already was a doorbell.
int without_moved(Set& set, epoll_event* events, int n) {
  Guard guard;
  for (std::uint32_t k = 0; k < set.interests.count; ++k) {
    const Interest& i = *set.interests.at[k];
    if (i.moved && !i.nested) {
      n = static_cast<int>(
          std::remove_if(events, events + n, [&](const epoll_event& e) { return e.data.u64 == i.data.u64; }) -
          events);
    }
  }
  return n;
}

// The set is about to be changed by this process. True: several use it.
bool changes_shared(int epfd) {
  InUse use;
  {
    Guard guard;
    Set* set = find(epfd);
    if (set == nullptr || !used_by_several(*set)) return false;
    use.take(*set);
  }
  take_back(*use.get());
  return true;
}

// A glance without the lock: what is in the set is the kernel's alone.
bool remembers_nothing(int epfd) {
  const Set* set = find(epfd);
  return set != nullptr && set->epfd == epfd && set->use == nullptr &&
         set->remembered.load(std::memory_order_seq_cst) == 0;
}

// The wait for such a set, if it is one. Sockets may come into it meanwhile, and move: what is said of these
// is not the application's.
template <typename Sleep>
bool wait_for_plain(int epfd, epoll_event* events, int most, std::int64_t timeout_ns, Sleep&& sleep, int* n) {
  struct Counted {
    std::atomic<std::uint32_t>& sleepers;
    explicit Counted(std::atomic<std::uint32_t>& s) : sleepers(s) { sleepers.fetch_add(1); }
    ~Counted() { sleepers.fetch_sub(1); }  // also when cancelled
  };
  if (!remembers_nothing(epfd)) return false;
  const std::uint64_t before = order_stamp() & PipeStamp::kTimeMask;
  {
    const Counted counted(plain_sleepers[epfd]);
    if (!remembers_nothing(epfd)) return false;
    *n = sleep(events, most, timeout_ns);
  }
  if (*n <= 0 || (remembers_nothing(epfd) && std::none_of(events, events + *n, is_ours))) return true;
  Guard guard;
  if (Set* set = find(epfd); set != nullptr) {
    *n = gather(*set, events, most, *n, before);
  } else {
    *n = without_ours(events, *n);
  }
  return true;
}

// What a thread that spins looks at, without the lock: sockets that have moved and have nothing to say.
class SpinView {
 public:
  SpinView() = default;
  ~SpinView() { clear(); }
  SpinView(const SpinView&) = delete;
  SpinView& operator=(const SpinView&) = delete;

  /// Under the lock. False: nothing is there that could be looked at.
  bool take(const Set& set) {
    clear();
    changes_ = set.changes.load(std::memory_order_relaxed);
    rest_ = set.watched.count > kMost;
    for (std::uint32_t k = 0; k < set.watched.count; ++k) {
      const Interest& i = *set.watched.at[k];
      const bool simple = !i.nested && count_ < kMost && quiet(i);
      rest_ |= !simple;
      if (!simple) continue;
      i.socket->refs.fetch_add(1, std::memory_order_relaxed);
      sockets_[count_++] = i.socket;
    }
    return watches_pipes(set);
  }
  /// Of some of them, others each time.
  bool any() {
    for (std::uint32_t k = std::min(count_, kSome); k > 0; --k) {
      next_ = next_ + 1 < count_ ? next_ + 1 : 0;
      if (!nothing_new(*sockets_[next_])) return true;
    }
    return false;
  }
  /// Others, for which it takes the lock; or what is in the set has changed.
  bool rest(const Set& set) const { return rest_ || changes_ != set.changes.load(std::memory_order_relaxed); }
  /// What is known of all their peers.
  Awaited peers() const {
    Awaited peers{0, count_ > 0};
    for (std::uint32_t k = 0; k < count_; ++k) {
      const std::uint16_t cpu = sockets_[k]->pipe.peer_cpu();
      peers.cpu = k == 0 || cpu == peers.cpu ? cpu : 0;
      peers.slept &= sockets_[k]->rang.load(std::memory_order_relaxed);
    }
    return peers;
  }

 private:
  static constexpr std::uint32_t kMost = 16, kSome = 4;
  void clear() {
    while (count_ > 0) (void)Held(sockets_[--count_]);
  }
  Socket* sockets_[kMost];
  std::uint32_t count_ = 0, next_ = 0;
  std::uint32_t changes_ = 0;
  bool rest_ = false;
};

// One epoll_wait() on a set that holds sockets of ours. `sleep(events, most, timeout_ns)` is the kernel's wait as the
// application called it.
template <typename Sleep>
class Wait {
 public:
  Wait(int epfd, epoll_event* events, int most, std::int64_t timeout_ns, Sleep& sleep)
      : epfd_(epfd), events_(events), most_(most), waits_(timeout_ns != 0), sleep_(sleep),
        deadline_(timeout_ns < 0 ? kNoDeadline : monotonic_ns() + static_cast<std::uint64_t>(timeout_ns)) {}

  int run() {
    int told = -1;  // events that the kernel has answered and nobody has seen yet
    std::uint64_t before = 0;
    bool interrupted = false;
    bool asks = !waits_;
    // What has moved comes first when the kernel has had its turn.
    bool first = asks && moved_ones_turn();
    for (;; first = false) {
      int n = 0;
      if (asks && !first) {
        // As the application called it: a signal may wait that the mask of the call lets in.
        asks = false;
        before = order_stamp() & PipeStamp::kTimeMask;
        told = sleep_(events_, most_, 0);
        interrupted = told < 0 && errno == EINTR;
        if (told < 0 && !interrupted) return told;
        told = std::max(told, 0);
      }
      switch (look(told, before, &n)) {
        case Next::kDone: return n;
        case Next::kGone: return sleep_(events_, most_, left_ns());  // nobody can wait there any more
        case Next::kAgain: told = -1; continue;
        case Next::kFollow:
          if (follow_others(*use_.get())) told = without_moved(*use_.get(), events_, told);
          continue;
        case Next::kSleep: break;
      }
      if (asks) continue;
      if (!waits_) {
        if (interrupted) errno = EINTR;
        return interrupted ? -1 : 0;
      }
      told = -1;
      n = spins_ ? spin_and_doze(&told, &before) : doze(&told, &before);
      if (n != kGoOn) return n;
    }
  }

 private:
  enum class Next { kDone, kGone, kAgain, kFollow, kSleep };
  static constexpr int kGoOn = -2;

  bool moved_ones_turn() const {
    const Set* set = find(epfd_);
    return set != nullptr && !set->kernels_turn.load(std::memory_order_relaxed);  // relaxed: a hint, fairness alone
  }

  // What there is, without waiting.
  Next look(int told, std::uint64_t before, int* n) {
    bool several = false;
    Set* set = nullptr;
    {
      Guard guard;
      set = use_.get() != nullptr ? use_.get() : find(epfd_);
      if (set == nullptr || (set->names == 0 && told <= 0)) return Next::kGone;
      several = used_by_several(*set);
      const bool looks = several ? !set->taken_back : set->seen_moves != moves_of_shared();
      several_ = several;
      moved_ = set->moved > 0;
      if (told > 0 && looks && !several) {  // it may be of doorbells of what another process has moved
        use_.take(*set);
        return Next::kFollow;
      }
      if (told > 0) fetch_ahead(*set);
      if (told > 0 || (moved_ && !looks)) *n = gather(*set, events_, most_, told, before);
      if (*n > 0) {
        use_.drop();
        return Next::kDone;
      }
      use_.take(*set);
      if (!looks) {
        spins_ = moved_ && waits_ && view_.take(*set);
        return Next::kSleep;
      }
    }
    several ? take_back(*set) : (void)follow_others(*set);
    return Next::kAgain;
  }

  // As doze(), when spinning has not been enough.
  int spin_and_doze(int* told, std::uint64_t* before) {
    Set& set = *use_.get();
    const bool plain = has_plain(set);
    bool failed = false;
    auto ready = [&] { return view_.any() || since_.handled(); };
    auto beyond = [&] {
      if (plain && !failed) {
        *before = order_stamp() & PipeStamp::kTimeMask;
        KeepErrno keep;
        *told = sys::epoll_wait(epfd_, events_, most_, 0);
        if (*told > 0) return true;
        failed = *told < 0;
        *told = -1;
      }
      if (!view_.rest(set)) return false;
      Guard guard;
      return set.names == 0 || anything(set) || !view_.take(set);
    };
    int n = kGoOn;
    auto sleep = [&] {
      n = doze(told, before);
      return slept_;
    };
    const Waited waited = set.waiter->wait(ready, view_.peers(), deadline_, sleep, beyond);
    const bool handled = waited == Waited::kReady && *told <= 0 && since_.handled();
    return handled || waited == Waited::kTimedOut ? doze(told, before) : n;
  }

  // Sleeps in the kernel. kGoOn, or the answer.
  int doze(int* told, std::uint64_t* before) {
    Set& set = *use_.get();
    slept_ = false;
    if (since_.handled()) {
      errno = EINTR;
      return -1;
    }
    SetSleep* prepared = nullptr;
    std::int64_t longest = kNoCap;
    {
      Guard guard;
      if (!prepare(set, &prepared) || guard.owes()) {
        awake(prepared);
        return kGoOn;
      }
      for (std::uint32_t k = 0; k < set.watched.count; ++k) {
        longest = std::min(longest, longest_sleep(*set.watched.at[k]));
      }
    }
    if (several_ && moved_) longest = std::min(longest, kOthersNs);
    const std::int64_t left = left_ns();
    const std::int64_t nap = longest != kNoCap && (left < 0 || left > longest) ? longest : left;
    *before = order_stamp() & PipeStamp::kTimeMask;
    int n = sleep_prepared(prepared, [&] { return sleep_(events_, most_, nap); });
    if (n < 0) return n;
    slept_ = true;
    if (n > 0 || nap != left) {
      *told = n;
      return kGoOn;
    }
    Guard guard;
    return gather(set, events_, most_, 0, *before);
  }

  std::int64_t left_ns() const {
    if (deadline_ == kNoDeadline) return -1;
    if (!waits_) return 0;
    const std::uint64_t now = monotonic_ns();
    return now >= deadline_ ? 0 : static_cast<std::int64_t>(deadline_ - now);
  }

  const int epfd_;
  epoll_event* const events_;
  const int most_;
  const bool waits_;
  Sleep& sleep_;
  const std::uint64_t deadline_;
  InUse use_;
  SpinView view_;
  const SinceEntry since_;
  bool several_ = false, moved_ = false, spins_ = false, slept_ = false;
};

template <typename Sleep>
int wait_for_events(int epfd, epoll_event* events, int most, std::int64_t timeout_ns, Sleep&& sleep) {
  if (!known_epoll(epfd) || most <= 0 || events == nullptr) return sleep(events, most, timeout_ns);
  const std::uint64_t start = timeout_ns > 0 ? monotonic_ns() : 0;
  if (int n; wait_for_plain(epfd, events, most, timeout_ns, sleep, &n)) {
    if (n != 0 || timeout_ns == 0) return n;
    if (timeout_ns > 0) {
      timeout_ns -= static_cast<std::int64_t>(std::min<std::uint64_t>(monotonic_ns() - start, timeout_ns));
      if (timeout_ns == 0) return 0;
    }
  }
  Wait<Sleep> wait(epfd, events, most, timeout_ns, sleep);
  return wait.run();
}

// A set in a set: the kernel has done what was asked, and we answer for what has moved in it.
void note_nested(int epfd, int op, int fd, const epoll_event* event) {
  Guard guard;
  Set* inner = op == EPOLL_CTL_ADD ? make(fd) : find(fd);
  Set* set = op == EPOLL_CTL_ADD ? make(epfd) : find(epfd);
  if (set == nullptr || inner == nullptr || inner == set) return;
  Interest* i = inner->within;
  while (i != nullptr && (i->set != set || i->fd != fd)) i = i->next_of_socket;
  if (op == EPOLL_CTL_DEL) {
    if (i != nullptr) remove(i);
    return;
  }
  if (i == nullptr) {
    i = interest_pool.take();
    if (i == nullptr || !add(*set, i)) return;
    i->set = set;
    i->nested = true;
    i->inner = inner;
    i->next_of_socket = std::exchange(inner->within, i);
    i->moved = true;  // it is asked each time
    ++set->moved;
    ++set->nested;
    set->plain.store(true, std::memory_order_relaxed);
    i->fd = fd;
    watch(*i);
  }
  i->events = event->events;
  i->data = event->data;
  i->fired = false;
}

// What the application wants of a socket that has moved, from now on.
void ask_for(Interest& i, const epoll_event& event) {
  i.events = event.events;
  i.data = event.data;
  i.fired = false;
  i.out_told = false;
  i.seen_in = ~std::uint64_t{0};
  i.since = order_stamp() & PipeStamp::kTimeMask;
  i.listed = false;
  watch(i);
  i.set->changes.fetch_add(1, std::memory_order_relaxed);
  tell_sleepers(i, true);
}

// As far as the event goes.
bool kernel_would_take(const epoll_event* event) {
  constexpr std::uint32_t kWithExclusive =
      EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;
  return event != nullptr &&
         ((event->events & EPOLLEXCLUSIVE) == 0 || (event->events & ~kWithExclusive) == 0);
}

// `before`: what we know of the descriptor in this set already. `lost`: there is nowhere to remember it.
int control_add(int epfd, int fd, epoll_event* event, Socket& s, Set* set, Interest* before, bool* lost) {
  if (before != nullptr && before->parked) {
    KeepErrno keep;
    sys::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, nullptr);
  }
  // One that has moved is asked for doorbells at once: of those that lie there already a thread
  // asleep in the set would be told as of bytes.
  epoll_event bells = for_doorbells(fd);
  const bool moved = s.shared() && set != nullptr && kernel_would_take(event);
  const int rc = real().epoll_ctl(epfd, EPOLL_CTL_ADD, fd, moved ? &bells : event);
  if (rc != 0) return rc;
  if (before != nullptr) remove(before);  // of a descriptor that was closed behind our back
  Interest* i = set != nullptr ? interest_pool.take() : nullptr;
  if (i == nullptr || (i->set = set, !add(*set, i))) {
    KeepErrno keep;
    if (moved) sys::epoll_ctl(epfd, EPOLL_CTL_MOD, fd, event);
    *lost = true;
    return rc;
  }
  i->socket = &s;
  i->fd = fd;
  i->events = event->events;
  i->data = event->data;
  i->next_of_socket = s.interests;
  s.interests = i;
  // Who has gone back to TCP meanwhile sees this, or we see that below.
  s.in_sets.store(true, std::memory_order_seq_cst);
  i->since = order_stamp() & PipeStamp::kTimeMask;
  if (s.shared()) {
    KeepErrno keep;
    moved ? answer_from_pipe(*i) : watch_doorbells(*i);
    tell_sleepers(*i, true);
  } else if (moved) {  // it has gone back to TCP meanwhile
    KeepErrno keep;
    change_to(*set, fd, event);
  }
  return rc;
}

// Asks the kernel. `epfd` is not in it.
bool is_set(int fd, int epfd) {
  KeepErrno keep;
  return sys::epoll_ctl(fd, EPOLL_CTL_DEL, epfd, nullptr) != 0 && errno == ENOENT;
}

int control_socket(int epfd, int op, int fd, epoll_event* event, Socket& s, bool* lost) {
  Guard guard;
  Set* set = op == EPOLL_CTL_ADD ? make(epfd) : find(epfd);
  Interest* i = set != nullptr ? find(*set, &s, fd) : nullptr;
  if (op == EPOLL_CTL_ADD) {
    if (i != nullptr && i->parked && event != nullptr && (event->events & EPOLLEXCLUSIVE) == 0) {
      i->parked = false;
      if (std::exchange(i->missed, false)) (void)look_at_kernel(fd, s);
      ask_for(*i, *event);
      return 0;
    }
    return control_add(epfd, fd, event, s, set, i, lost);
  }
  if (i != nullptr && i->parked) {
    errno = ENOENT;
    return -1;
  }
  if (i == nullptr || !i->moved) {
    const int rc = real().epoll_ctl(epfd, op, fd, event);
    if (rc == 0 && i != nullptr) {
      if (op == EPOLL_CTL_DEL) {
        remove(i);
      } else {
        i->events = event->events;
        i->data = event->data;
      }
    }
    return rc;
  }
  if (op == EPOLL_CTL_DEL) {
    // Programs take sockets out and put them in again with every message. Processes may share the set.
    if (!s.inherited.load(std::memory_order_relaxed)) {
      i->parked = true;
      unwatch(*i);
      return 0;
    }
    const int rc = real().epoll_ctl(epfd, op, fd, event);
    remove(i);
    return rc;
  }
  if (op != EPOLL_CTL_MOD || event == nullptr || ((event->events | i->events) & EPOLLEXCLUSIVE) != 0) {
    errno = event == nullptr ? EFAULT : EINVAL;
    return -1;
  }
  ask_for(*i, *event);
  return 0;
}

// Something is put into the set of which only the kernel knows.
void note_plain(int epfd, int op) {
  Set* set = op == EPOLL_CTL_ADD ? find(epfd) : nullptr;
  if (set == nullptr || set->plain.load(std::memory_order_relaxed)) return;
  set->plain.store(true, std::memory_order_relaxed);
  set->changes.fetch_add(1, std::memory_order_relaxed);
}

int control(int epfd, int op, int fd, epoll_event* event) {
  if (find(fd) != nullptr) {
    const int rc = real().epoll_ctl(epfd, op, fd, event);
    if (rc == 0) note_nested(epfd, op, fd, event);
    return rc;
  }
  Held s = hold_current(fd);
  if (!s || s->stays_on_tcp()) note_plain(epfd, op);
  if (!s && op == EPOLL_CTL_ADD) {
    const int rc = real().epoll_ctl(epfd, op, fd, event);
    // A set in which there is no socket yet. Now that it is in the other one, that cannot be in it.
    if (rc == 0 && is_set(fd, epfd)) note_nested(epfd, op, fd, event);
    return rc;
  }
  // Nothing to remember of one that stays on TCP for good.
  if (!s || s->stays_on_tcp()) return real().epoll_ctl(epfd, op, fd, event);
  if (op != EPOLL_CTL_DEL && sets_shared && changes_shared(epfd)) leave_pipe(fd, false);
  bool lost = false;
  const int rc = control_socket(epfd, op, fd, event, *s, &lost);
  if (lost) never_move(fd, *s);
  return rc;
}

}  // namespace

void lock_epoll() {
  while (lock_word.test_and_set(std::memory_order_acquire)) sched_yield();
}
void unlock_epoll() { lock_word.clear(std::memory_order_release); }

namespace {
SharedPages<SetUse> uses;
}

void share_sets() {
  for (int fd = 0; fd < sets_end; ++fd) {
    Set* set = sets[fd].load(std::memory_order_relaxed);
    if (set == nullptr) continue;
    for (std::uint32_t k = set->interests.count; k-- > 0;) {
      Interest* i = set->interests.at[k];
      if (!i->parked) continue;
      change(*set, EPOLL_CTL_DEL, i->fd, nullptr);
      remove(i);
    }
    if (set->use != nullptr) continue;
    set->use = uses.take();
    if (set->use == nullptr) return;
    sets_shared = true;
    our_pid = static_cast<pid_t>(sys::call(SYS_getpid));
  }
}

void sets_forked() {
  uses.forked();
  our_pid = static_cast<pid_t>(sys::call(SYS_getpid));
  for (int fd = 0; fd < sets_end; ++fd) {
    Set* set = sets[fd].load(std::memory_order_relaxed);
    if (set == nullptr) continue;
    set->refs = 1;  // other threads are the parent's
    set->sleepers = 0;
    plain_sleepers[fd].store(0);
  }
}

void moved(Socket& s) {
  Guard guard;
  for (Interest* i = s.interests; i != nullptr; i = i->next_of_socket) {
    watch_doorbells(*i);
    tell_sleepers(*i, false);
  }
}

void went_back(Socket& s) {
  if (!s.in_sets.load(std::memory_order_seq_cst) || s.shared()) return;
  Guard guard;
  for (Interest* i = s.interests; i != nullptr;) {
    Interest* next = i->next_of_socket;
    if (i->parked) {
      KeepErrno keep;
      change(*i->set, EPOLL_CTL_DEL, i->fd, nullptr);
      remove(i);
    } else {
      watch_kernel(*i);
    }
    i = next;
  }
}

void stayed(Socket& s) {
  // Who shares the open file may still move it.
  if (!s.in_sets.load(std::memory_order_seq_cst) || s.inherited.load(std::memory_order_relaxed)) return;
  Guard guard;
  for (Interest* i = s.interests; i != nullptr;) {
    Interest* next = i->next_of_socket;
    if (!i->moved && !i->parked) remove(i);
    i = next;
  }
}

bool set_moved(int epfd) {
  Set* set = find(epfd);
  return set != nullptr && set->moved > 0;
}

bool set_ready(int epfd) {
  Guard guard;
  Set* set = find(epfd);
  return set != nullptr && anything(*set);
}

bool set_has_only_doorbells(int epfd) {
  Guard guard;
  Set* set = find(epfd);
  return set != nullptr && only_doorbells(*set);
}

SetSleep* set_prepare_sleep(int epfd, bool* sleeps) {
  Guard guard;
  SetSleep* sleep = nullptr;
  Set* set = find(epfd);
  *sleeps = set == nullptr || (prepare(*set, &sleep) && !guard.owes());
  return sleep;
}

void set_awake(SetSleep* sleep) {
  if (sleep == nullptr) return;
  Guard guard;
  awake(sleep);
}

bool put_off(int fd, Socket& s) {
  if (!t_has_lock) return false;
  for (int k = 0; k < t_owed.count; ++k) {
    if (t_owed.to[k].socket == &s) return true;
  }
  if (t_owed.count < Owed::kMost) {
    s.refs.fetch_add(1, std::memory_order_relaxed);
    t_owed.to[t_owed.count++] = {fd, &s};
  }
  return true;
}

bool watcher_sleeps(const Socket& s, std::uint32_t events) {
  if (!s.in_sets.load(std::memory_order_seq_cst)) return false;
  const bool locked = !t_has_lock;
  if (locked && lock_word.test_and_set(std::memory_order_acquire)) return true;  // to be on the safe side
  bool sleeps = false;
  for (const Interest* i = s.interests; i != nullptr && !sleeps; i = i->next_of_socket) {
    if (!i->moved || i->parked || i->fired || (events != 0 && (i->events & events) == 0)) continue;
    sleeps = i->watched_at == Interest::kNowhere || i->set->sleepers > 0 ||
             plain_sleepers[i->set->epfd].load(std::memory_order_seq_cst) > 0;
  }
  if (locked) unlock_epoll();
  return sleeps;
}

void left_descriptor(Socket& s, int fd) {
  if (!s.in_sets.load(std::memory_order_seq_cst)) return;
  Guard guard;
  for (Interest* i = s.interests; i != nullptr;) {
    Interest* next = i->next_of_socket;
    if (i->fd == fd) {
      // The kernel keeps a registration while another descriptor of the file is open. Nobody could say what
      // it is for any more: the socket's own descriptor is what we know it by.
      KeepErrno keep;
      if (s.fds.load(std::memory_order_relaxed) > 1) change(*i->set, EPOLL_CTL_DEL, fd, nullptr);
      remove(i);
    }
    i = next;
  }
}

bool known_epoll(int fd) { return find(fd) != nullptr; }

void forget_epoll(int fd) {
  if (!known_epoll(fd)) return;
  Guard guard;
  Set* set = sets[fd].exchange(nullptr);
  if (set == nullptr) return;
  if (--set->names > 0) {
    for (int other = 0; set->epfd == fd && other < kMostSets; ++other) {
      if (sets[other].load(std::memory_order_relaxed) == set) set->epfd = other;
    }
    return;
  }
  while (set->within != nullptr) remove(set->within);  // the kernel takes it out of other sets
  release(*set);
}

void forget_epoll_range(unsigned first, unsigned last) {
  const auto end = static_cast<unsigned>(sets_end.load());
  for (unsigned fd = first; fd <= last && fd < end; ++fd) forget_epoll(static_cast<int>(fd));
}

void duplicate_epoll(int from, int to) {
  forget_epoll(to);
  if (find(from) == nullptr || to < 0 || to >= kMostSets) return;
  Guard guard;
  Set* set = sets[from].load();
  if (set == nullptr) return;
  ++set->names;
  sets[to].store(set, std::memory_order_release);
  sets_end = std::max(sets_end.load(), to + 1);
}

}  // namespace clan::preload

using clan::preload::control;
using clan::preload::note_plain;
using clan::preload::real;

CLAN_INTERPOSE int epoll_ctl(int epfd, int op, int fd, epoll_event* event) {
  if (clan::preload::no_set_need_know(fd)) {
    note_plain(epfd, op);
    return clan::preload::real().epoll_ctl(epfd, op, fd, event);
  }
  return control(epfd, op, fd, event);
}

CLAN_INTERPOSE int epoll_wait(int epfd, epoll_event* events, int most, int timeout) {
  return clan::preload::wait_for_events(
      epfd, events, most, timeout < 0 ? -1 : timeout * std::int64_t{1'000'000},
      [epfd](epoll_event* to, int n, std::int64_t ns) {
        return clan::preload::sleep_releasing(ns, [&](std::int64_t left) {
          return real().epoll_wait(epfd, to, n, left < 0 ? -1 : static_cast<int>((left + 999'999) / 1'000'000));
        });
      });
}

CLAN_INTERPOSE int epoll_pwait(int epfd, epoll_event* events, int most, int timeout, const sigset_t* mask) {
  return clan::preload::wait_for_events(
      epfd, events, most, timeout < 0 ? -1 : timeout * std::int64_t{1'000'000},
      [epfd, mask](epoll_event* to, int n, std::int64_t ns) {
        return clan::preload::sleep_releasing(ns, [&](std::int64_t left) {
          return real().epoll_pwait(epfd, to, n, left < 0 ? -1 : static_cast<int>((left + 999'999) / 1'000'000),
                                    mask);
        });
      });
}

CLAN_INTERPOSE int epoll_pwait2(int epfd, epoll_event* events, int most, const timespec* timeout,
                                const sigset_t* mask) {
  std::int64_t ns;
  if (!clan::preload::nanoseconds(timeout, &ns)) return -1;
  return clan::preload::wait_for_events(
      epfd, events, most, ns, [epfd, mask](epoll_event* to, int n, std::int64_t all) {
        return clan::preload::sleep_releasing(all, [&](std::int64_t left) {
          const timespec ts = clan::preload::as_timespec(left < 0 ? 0 : left);
          return real().epoll_pwait2(epfd, to, n, left < 0 ? nullptr : &ts, mask);
        });
      });
}
