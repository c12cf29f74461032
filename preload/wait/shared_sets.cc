#include "wait/shared_sets.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>

#include <algorithm>
#include <cstdint>

#include "clan/face/reasons.h"
#include "clan/face/socket_face.h"
#include "demote/demote.h"
#include "os/shared_pages.h"
#include "state/face.h"
#include "state/hooks.h"
#include "state/socket.h"
#include "table/fd_table.h"
#include "wait/registration.h"
#include "wait/set_events.h"

namespace clan::preload {
namespace {

bool sets_shared = false;  ///< sets may have lived through a fork
pid_t our_pid = 0;         ///< if so
SharedPages<SetUse> uses;

// Calls `f(fd, socket)` without the lock for all sockets of a set for which `which` is true, until
// `f` makes it false.
template <typename Which, typename F>
bool for_sockets(Set& set, Which&& which, F&& f) {
  constexpr std::uint32_t kSome = 16;
  struct {
    int fd;
    Socket* socket;
  } some[kSome];
  bool any = false;
  std::uint32_t most = 0;  // turns, in case it stays true
  for (std::uint32_t turns = 0, n = kSome; n == kSome && turns <= most; ++turns) {
    n = 0;
    {
      const Guard guard(set);
      most = std::max(most, set.interests.count / kSome + 1);  // `f` may take some out
      for (std::uint32_t k = 0; k < set.interests.count && n < kSome; ++k) {
        const Interest& i = *set.interests.at[k];
        if (!which(i)) continue;
        i.socket->refs.fetch_add(1, std::memory_order_relaxed);
        some[n++] = {i.fd, i.socket};
      }
    }
    for (std::uint32_t k = 0; k < n; ++k) {
      const SocketRef held(some[k].socket);
      f(some[k].fd, *held);
      any = true;
    }
  }
  return any;
}

// relaxed: a flag
bool is_noticed(const SetUse& use) { return use.noticed.load(std::memory_order_relaxed); }

// The first user may sleep in the kernel, waiting for rings that any process may take.
void wake_first_user(const Set& set) {
  KeepErrno keep;
  const int bell = static_cast<int>(sys::call(SYS_eventfd2, 1, EFD_CLOEXEC | EFD_NONBLOCK));
  if (bell < 0) return;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kTag | (kTagged - 1);  // no descriptor
  constexpr int kMostMs = 200;            // it may be busy, and checks before it sleeps
  if (change(set, EPOLL_CTL_ADD, bell, &event) == 0) {
    const timespec nap{0, 1'000'000};
    for (int ms = 0; ms < kMostMs && !is_noticed(*set.use); ++ms)
      sys::call(SYS_nanosleep, &nap, nullptr);
    change(set, EPOLL_CTL_DEL, bell, nullptr);
  }
  sys::close(bell);
}

}  // namespace

bool has_shared_sets() { return sets_shared; }

bool used_by_several(Set& set) {
  if (set.use == nullptr) return false;
  SetUse& use = *set.use;
  const pid_t me = our_pid;
  // relaxed, all of it: independent words, and wake_first_user() wakes one that missed them
  constexpr auto order = std::memory_order_relaxed;
  pid_t user = use.user.load(order);
  if (!use.several.load(order) && user != me) {
    KeepErrno keep;
    const bool free = user == 0 || !sys::exists(user);
    if (!free || !use.user.compare_exchange_strong(user, me, order)) use.several.store(true, order);
  }
  if (!use.several.load(order)) return false;
  if (use.user.load(order) == me) use.noticed.store(true, order);
  return true;
}

void take_back(Set& set) {
  // relaxed: one thread does it
  if (set.taken_back.exchange(true, std::memory_order_relaxed)) return;
  for_sockets(
      set,
      [](const Interest& i) {
        const Socket& s = *i.socket;
        // relaxed: leave_pipe() checks again
        if (s.open_file().pinned.load(std::memory_order_relaxed) == 0) return true;
        return s.shared() &&
               (state_of(s.mine()) & (socket_face::kLeaving | socket_face::kGone)) == 0;
      },
      [](int fd, Socket&) { leave_pipe(fd, false, reasons::Why::kSharedSet); });
  // Includes those that another user has taken back.
  for_sockets(
      set,
      [](const Interest& i) {
        return reasons::is_weak(i.socket->said.load(std::memory_order_relaxed));
      },
      [](int fd, Socket& s) { say_why(fd, s, reasons::Why::kSharedSet); });
  if (!is_noticed(*set.use)) wake_first_user(set);
}

void take_off_pipes(int epfd) {
  if (const Set* set = make(epfd);
      set == nullptr || set->on_tcp.load(std::memory_order_relaxed))  // relaxed: a glance
    return;
  InUse use;
  {
    const Guard guard(epfd);
    if (!guard) return;
    guard.set()->on_tcp.store(true, std::memory_order_relaxed);  // relaxed: under the lock
    use.take(*guard.set());
  }
  for_sockets(
      *use.get(),
      [](const Interest& i) {
        const Socket& s = *i.socket;
        // relaxed: keep_on_tcp() checks again
        return s.shared() || s.open_file().pinned.load(std::memory_order_relaxed) == 0;
      },
      take_off_pipe);
}

bool changes_shared(int epfd) {
  InUse use;
  {
    const Guard guard(epfd);
    if (!guard || !used_by_several(*guard.set())) return false;
    use.take(*guard.set());
  }
  take_back(*use.get());
  return true;
}

void share_sets() {
  for (int fd = 0; fd < sets_below(); ++fd) {
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
  for (int fd = 0; fd < sets_below(); ++fd) {
    plain_sleepers[fd].store(0, std::memory_order_relaxed);  // relaxed: the child has one thread
    Set* set = sets[fd].load(std::memory_order_relaxed);
    if (set == nullptr) continue;
    set->refs = 1;  // other threads are in the parent
    set->sleepers = 0;
  }
}

}  // namespace clan::preload
