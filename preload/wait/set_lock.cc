#include "wait/set_lock.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "stream/readiness.h"
#include "table/fd_table.h"

namespace clan::preload {
namespace {

struct alignas(64) Lock : SpinLock {};
constexpr std::size_t kLocks = 128;
constinit Lock locks[kLocks];

// The calling thread's lock, if any. initial-exec: used on the data path
constinit thread_local SpinLock* t_lock __attribute__((tls_model("initial-exec"))) = nullptr;
constinit thread_local bool t_guards __attribute__((tls_model("initial-exec"))) = false;

// By the set's address: a thread that locks a set which is closed meanwhile has the lock of its
// successor there. Null: it is one thread's.
SpinLock* lock_of(const Set& set) {
  if (set.polled != nullptr) return nullptr;
  return &locks[reinterpret_cast<std::uintptr_t>(&set) / sizeof(Set) % kLocks];
}

}  // namespace

constinit SpinLock making;
constinit thread_local Due t_due{};

void note_due(int fd, Socket& s) {
  for (int k = 0; k < t_due.count; ++k) {
    if (t_due.of[k].socket == &s) return;
  }
  if (t_due.count == Due::kMost) return;
  s.refs.fetch_add(1, std::memory_order_relaxed);
  t_due.of[t_due.count++] = {fd, &s};
}

void Guard::take(SpinLock* lock) {
  lock->lock();
  lock_ = t_lock = lock;
}

void Guard::let_go() {
  t_lock = nullptr;
  std::exchange(lock_, nullptr)->unlock();
}

Guard::Guard(const Set& set) : outermost_(!std::exchange(t_guards, true)) {
  if (SpinLock* const lock = lock_of(set); lock != t_lock && lock != nullptr) take(lock);
}

Guard::Guard(int epfd) : outermost_(!std::exchange(t_guards, true)) {
  while ((set_ = find(epfd)) != nullptr) {
    take(lock_of(*set_));
    if (find(epfd) == set_) return;
    let_go();
  }
}

Guard::Guard(const Socket& s, const Interest& i, SpinLock* lock)
    : outermost_(!std::exchange(t_guards, true)) {
  take(lock);
  const auto is_it = [&](const Interest& one) { return &one == &i && lock_of(*i.set) == lock; };
  if (find_interest(s, is_it) == nullptr) let_go();
}

Guard::~Guard() {
  if (lock_ != nullptr) let_go();
  if (!outermost_) return;
  t_guards = false;
  while (t_due.count > 0) {
    const auto [fd, socket] = t_due.of[--t_due.count];
    const SocketRef due(socket);
    if (const SocketRef now = acquire(fd); now.get() == socket) do_due(fd, *socket);
  }
}

void lock_epoll() {
  making.lock();
  for (SpinLock& lock : locks) lock.lock();
}

void unlock_epoll() {
  for (SpinLock& lock : locks) lock.unlock();
  making.unlock();
}

Interest* next_interest(const Socket& s, const Interest* last, SpinLock** lock) {
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
