#include "wait/set_lock.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "os/spin_lock.h"
#include "stream/readiness.h"
#include "table/fd_table.h"

namespace clan::preload {
namespace {

SpinLock making;

struct alignas(64) Lock : SpinLock {};
constexpr std::size_t kLocks = 128;
constinit Lock locks[kLocks];

// of the calling thread; null: none. initial-exec: asked on the data path
constinit thread_local SpinLock* t_lock __attribute__((tls_model("initial-exec"))) = nullptr;
constinit thread_local bool t_guards __attribute__((tls_model("initial-exec"))) = false;

// By the set's place in memory, where another set follows it: a lock that is taken for a set which
// has been closed meanwhile is still the lock of what is there. Null: of one thread alone.
SpinLock* lock_of(const Set& set) {
  if (set.polled != nullptr) return nullptr;
  return &locks[reinterpret_cast<std::uintptr_t>(&set) / sizeof(Set) % kLocks];
}

bool has_interest(const Socket& s, const Interest& i) {
  const Interest* other = s.interests;
  while (other != nullptr && other != &i) other = other->next_of_socket;
  return other != nullptr;
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
  const std::lock_guard listed(s.listing);
  if (!has_interest(s, i) || lock_of(*i.set) != lock) let_go();
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

TryGuard::TryGuard(const Set& set) : held_already_(lock_of(set) == t_lock) {
  if (!held_already_ && lock_of(set)->try_lock()) lock_ = lock_of(set);
}

TryGuard::~TryGuard() {
  if (lock_ != nullptr) lock_->unlock();
}

Making::Making() { making.lock(); }
Making::~Making() { making.unlock(); }

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
