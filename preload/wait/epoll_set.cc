#include "wait/epoll_set.h"

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "attach/attach.h"
#include "clan/face/wait.h"
#include "os/spin_lock.h"
#include "state/remote.h"
#include "state/socket.h"
#include "wait/deferred_demotions.h"
#include "wait/list.h"
#include "wait/registration.h"

namespace clan::preload {
namespace {

SpinLock lock_word;
ObjectPool<Interest> interest_pool;
ObjectPool<Set> set_pool;

constinit std::atomic<int> sets_end{0};

}  // namespace

void reach(int epfd) {
  // relaxed, both: no thread knows the descriptor before
  int end = sets_end.load(std::memory_order_relaxed);
  while (end <= epfd && !sets_end.compare_exchange_weak(end, epfd + 1, std::memory_order_relaxed)) {
  }
}

constinit std::atomic<Set*> sets[kMostSets]{};
constinit std::atomic<std::uint32_t> plain_sleepers[kMostSets]{};

// relaxed: see reach()
int sets_below() { return sets_end.load(std::memory_order_relaxed); }

Guard::Guard() {
  lock_epoll();
  t_owed.putting_off = true;
}

Guard::~Guard() {
  t_owed.putting_off = false;
  unlock_epoll();
  if (t_owed.count > 0) pay_owed_answers();
}

void lock_epoll() { lock_word.lock(); }

void unlock_epoll() { lock_word.unlock(); }
bool try_lock_epoll() { return lock_word.try_lock(); }

Set* make(int epfd) {
  if (epfd < 0 || epfd >= kMostSets) return nullptr;
  Set* set = sets[epfd].load(std::memory_order_relaxed);
  if (set != nullptr) return set;
  set = set_pool.take();
  if (set == nullptr) return nullptr;
  set->names = set->refs = 1;
  set->epfd = epfd;
  set->waiter.emplace(WaitOptions{});
  set->remote_waiter.emplace(kRemoteWait);
  set->plain = !is_empty(epfd);
  set->seen_moves = moves_of_shared() - 1;
  // PAIR preload.sets: publishes the set. order: before the load of plain_sleepers, as in add()
  sets[epfd].store(set, std::memory_order_seq_cst);
  reach(epfd);
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
  if (!set.watched.reserve(set.interests.room) || !set.found.reserve(set.interests.room))
    return false;
  set.changes.fetch_add(1, std::memory_order_relaxed);
  i->index = set.interests.count;
  set.interests.at[set.interests.count++] = i;
  // order: before the load of plain_sleepers; a sleeper counts itself there first and looks here
  // then
  set.remembered.store(set.interests.count, std::memory_order_seq_cst);
  return true;
}

Interest* new_interest() { return interest_pool.take(); }

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

void remove(Interest* i) {
  Set& set = *i->set;
  if (i->moved) --set.moved;
  if (i->nested) --set.nested;
  unwatch(*i);
  leave_bell(*i);
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

void release(Set& set) {
  if (--set.refs > 0) return;
  while (set.interests.count > 0) remove(set.interests.at[0]);
  set.interests.release();
  set.watched.release();
  set.found.release();
  set_pool.give_back(&set);
}

bool known_epoll(int fd) { return find(fd) != nullptr; }

void forget_epoll(int fd) {
  if (!known_epoll(fd)) return;
  Guard guard;
  // PAIR preload.sets: what looks without the lock does not find it any more
  Set* set = sets[fd].exchange(nullptr, std::memory_order_acq_rel);
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
  const auto end = static_cast<unsigned>(sets_below());
  for (unsigned fd = first; fd <= last && fd < end; ++fd) forget_epoll(static_cast<int>(fd));
}

void duplicate_epoll(int from, int to) {
  forget_epoll(to);
  if (find(from) == nullptr || to < 0 || to >= kMostSets) return;
  Guard guard;
  Set* set = sets[from].load(std::memory_order_relaxed);  // relaxed: under the lock
  if (set == nullptr) return;
  ++set->names;
  // PAIR preload.sets: publishes the set
  sets[to].store(set, std::memory_order_release);
  reach(to);
}

}  // namespace clan::preload
