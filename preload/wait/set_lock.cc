#include "wait/set_lock.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <utility>

#include "os/spin_lock.h"
#include "stream/readiness.h"
#include "table/fd_table.h"

namespace clan::preload {
namespace {

SpinLock making;

// Neighbours are on lines of their own.
constinit SpinLock locks[kMostSets];
SpinLock& lock_at(int epfd) {
  constexpr int kLine = 64;
  return locks[epfd % (kMostSets / kLine) * kLine + epfd / (kMostSets / kLine)];
}

// of the calling thread; -1: none. initial-exec: asked on the data path
constinit thread_local int t_lock __attribute__((tls_model("initial-exec"))) = Set::kNoLock;
constinit thread_local bool t_guards __attribute__((tls_model("initial-exec"))) = false;

// relaxed: it changes under the lock that it names, so the thread that has that sees whether it is
// the one
int lock_of(const Set& set) { return set.lock.load(std::memory_order_relaxed); }

bool has_interest(const Socket& s, const Interest& i) {
  const Interest* other = s.interests;
  while (other != nullptr && other != &i) other = other->next_of_socket;
  return other != nullptr;
}

// All sets that one is in, and that are in it.
void join(Set& set, int lock) {
  if (lock_of(set) == lock) return;
  set.lock.store(lock, std::memory_order_relaxed);
  for (const Interest* i = set.within; i != nullptr; i = i->next_of_socket) join(*i->set, lock);
  for (std::uint32_t k = 0; k < set.interests.count; ++k) {
    if (set.interests.at[k]->nested) join(*set.interests.at[k]->inner, lock);
  }
}

}  // namespace

constinit thread_local Due t_due{};

void note_due(int fd, Socket& s) {
  for (int k = 0; k < t_due.count; ++k) {
    if (t_due.of[k].socket == &s) return;
  }
  if (t_due.count == Due::kMost) return;
  s.refs.fetch_add(1, std::memory_order_relaxed);
  t_due.of[t_due.count++] = {fd, &s};
}

void Guard::take(int lock) {
  lock_at(lock).lock();
  lock_ = t_lock = lock;
}

void Guard::let_go() {
  t_lock = Set::kNoLock;
  lock_at(std::exchange(lock_, Set::kNoLock)).unlock();
}

Guard::Guard(const Set& set) : outermost_(!std::exchange(t_guards, true)) {
  if (lock_of(set) == t_lock) return;
  while (take(lock_of(set)), lock_ != lock_of(set)) let_go();
}

Guard::Guard(int epfd) : outermost_(!std::exchange(t_guards, true)) {
  while ((set_ = find(epfd)) != nullptr) {
    take(lock_of(*set_));
    if (find(epfd) == set_ && lock_ == lock_of(*set_)) return;
    let_go();
  }
}

Guard::Guard(const Socket& s, const Interest& i, int lock)
    : outermost_(!std::exchange(t_guards, true)) {
  take(lock);
  const std::lock_guard listed(s.listing);
  if (!has_interest(s, i) || lock_of(*i.set) != lock) let_go();
}

Guard::~Guard() {
  if (lock_ >= 0) let_go();
  if (!outermost_) return;
  t_guards = false;
  while (t_due.count > 0) {
    const auto [fd, socket] = t_due.of[--t_due.count];
    const SocketRef due(socket);
    if (const SocketRef now = acquire(fd); now.get() == socket) do_due(fd, *socket);
  }
}

TryGuard::TryGuard(const Set& set) : held_already_(lock_of(set) == t_lock) {
  const int lock = lock_of(set);
  if (held_already_ || !lock_at(lock).try_lock()) return;
  if (lock_of(set) == lock) {
    lock_ = lock;
  } else {
    lock_at(lock).unlock();
  }
}

TryGuard::~TryGuard() {
  if (lock_ >= 0) lock_at(lock_).unlock();
}

Making::Making() { making.lock(); }
Making::~Making() { making.unlock(); }

void lock_epoll() {
  making.lock();
  for (int epfd = 0; epfd < sets_below(); ++epfd) lock_at(epfd).lock();
}

void unlock_epoll() {
  for (int epfd = 0; epfd < sets_below(); ++epfd) lock_at(epfd).unlock();
  making.unlock();
}

void share_lock(int outer, int inner) {
  const Set *const one = find(outer), *const other = find(inner);
  if (one == nullptr || other == nullptr || lock_of(*one) == lock_of(*other)) return;
  const auto [first, second] = std::minmax({lock_of(*one), lock_of(*other)});
  const std::lock_guard low(lock_at(first)), high(lock_at(second));
  if (find(outer) == one && find(inner) == other) join(*find(inner), lock_of(*one));
}

Interest* next_interest(const Socket& s, const Interest* last, int* lock) {
  const DeferSignals undisturbed;
  const std::lock_guard listed(s.listing);
  Interest* next = nullptr;
  for (Interest* i = s.interests; i != nullptr; i = i->next_of_socket) {
    if (std::greater<>{}(i, last) && (next == nullptr || std::less<>{}(i, next))) next = i;
  }
  if (next != nullptr) *lock = lock_of(*next->set);
  return next;
}

}  // namespace clan::preload
