#include "wait/epoll_set.h"

#include <utility>

#include "state/remote.h"
#include "table/unseen_sets.h"
#include "wait/registration.h"
#include "wait/set_lock.h"

namespace clan::preload {
namespace {

ObjectPool<Interest> interest_pool;
ObjectPool<Set> set_pool;

constinit std::atomic<int> sets_end{0};

}  // namespace

void reach(int epfd) {
  // relaxed, both: no thread knew the descriptor before
  int end = sets_end.load(std::memory_order_relaxed);
  while (end <= epfd && !sets_end.compare_exchange_weak(end, epfd + 1, std::memory_order_relaxed)) {
  }
}

constinit std::atomic<Set*> sets[kMostSets]{};
constinit std::atomic<std::uint32_t> plain_sleepers[kMostSets]{};

// relaxed: see reach()
int sets_below() { return sets_end.load(std::memory_order_relaxed); }

Set* make(int epfd) {
  if (epfd < 0 || epfd >= kMostSets) return nullptr;
  Set* set = find(epfd);
  if (set != nullptr) return set;
  const DeferSignals undisturbed;
  const std::lock_guard one_maker(making);
  if ((set = find(epfd)) != nullptr) return set;
  set = set_pool.take();
  if (set == nullptr) return nullptr;
  set->names = set->refs = 1;
  set->epfd = epfd;
  set->waiter.emplace(WaitOptions{});
  set->remote_waiter.emplace(kRemoteWait);
  set->plain = !is_empty(epfd);
  // PAIR preload.sets: publishes the set. order: before the load of plain_sleepers, as in add()
  sets[epfd].store(set, std::memory_order_seq_cst);
  reach(epfd);
  return set;
}

Interest* find(Set& set, const Socket* s, int fd) {
  return find_interest(*s, [&](const Interest& i) { return i.set == &set && i.fd == fd; });
}

Interest* add(Set& set, Socket& s, int fd, const epoll_event& event) {
  // Room in both lists: watch() cannot fail.
  const bool has_room = set.interests.reserve(set.interests.count + 1) &&
                        set.watched.reserve(set.interests.room) &&
                        set.found.reserve(set.interests.room);
  Interest* const i = has_room ? interest_pool.take() : nullptr;
  if (i == nullptr) return nullptr;
  i->socket = &s;
  i->fd = fd;
  i->events = event.events;
  i->data = event.data;
  set.changes.fetch_add(1, std::memory_order_relaxed);
  i->set = &set;
  i->index = set.interests.count;
  set.interests.at[set.interests.count++] = i;
  // order: before loading plain_sleepers; a sleeper counts there first, then checks this
  set.remembered.store(set.interests.count, std::memory_order_seq_cst);
  const std::lock_guard listed(s.listing);
  i->next_of_socket = std::exchange(s.interests, i);
  // A thread that went back to TCP meanwhile sees this, or the caller sees that. order: before the
  // check of shared(); demotion stores that first, then checks this
  s.in_sets.store(true, std::memory_order_seq_cst);
  return i;
}

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
  unwatch(*i);
  leave_bell(*i);
  set.interests.at[i->index] = set.interests.at[--set.interests.count];
  set.interests.at[i->index]->index = i->index;
  set.remembered.store(set.interests.count, std::memory_order_relaxed);
  {
    Socket& s = *i->socket;
    const std::lock_guard listed(s.listing);
    Interest** p = &s.interests;
    while (*p != i) p = &(*p)->next_of_socket;
    *p = i->next_of_socket;
    if (s.interests == nullptr) s.in_sets.store(false, std::memory_order_relaxed);
  }
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

void forget_epoll(int fd) {
  Guard guard(fd);
  Set* const set = guard.set();
  if (set == nullptr) return;
  // PAIR preload.sets: unpublishes it
  sets[fd].store(nullptr, std::memory_order_release);
  if (--set->names > 0) {
    for (int other = 0; set->epfd == fd && other < sets_below(); ++other) {
      if (sets[other].load(std::memory_order_relaxed) == set) set->epfd = other;
    }
    return;
  }
  release(*set);
}

void forget_epoll_range(unsigned first, unsigned last) {
  const auto end = static_cast<unsigned>(sets_below());
  for (unsigned fd = first; fd <= last && fd < end; ++fd) forget_epoll(static_cast<int>(fd));
}

void duplicate_epoll(int from, int to) {
  forget_epoll(to);
  // Also while it is empty: both names are one set's.
  if (from < kMostSets && find(from) == nullptr && is_seen_set(from)) (void)make(from);
  if (find(from) == nullptr || to < 0 || to >= kMostSets) return;
  Guard guard(from);
  Set* const set = guard.set();
  if (set == nullptr) return;
  ++set->names;
  // PAIR preload.sets: publishes the set
  sets[to].store(set, std::memory_order_release);
  reach(to);
}

}  // namespace clan::preload
