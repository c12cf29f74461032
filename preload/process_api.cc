// A process's life: start, fork, exit, and the limits and sandboxes it puts on itself.
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdarg>

#include "af_clan.h"
#include "config.h"
#include "epoll.h"
#include "pipe_count.h"
#include "process.h"
#include "real.h"
#include "sandbox.h"
#include "signals.h"
#include "socket.h"
#include "testing.h"
#include "transfer.h"

using namespace clan::preload;

namespace clan::preload {
namespace {

std::atomic_flag forking = ATOMIC_FLAG_INIT;

}  // namespace

void before_fork() {
  enter_section();
  while (forking.test_and_set(std::memory_order_acquire)) sched_yield();
  share_slots();
  lock_resends();
  lock_epoll();
  share_sets();
  lock_af_clan();
  lock_sockets();
}

void after_fork(bool in_child) {
  KeepErrno keep;
  note_fork(in_child);
  if (in_child) {
    t_signals.thread = 0;
    (void)thread_id();  // not first when it has to ring
    note_process();
    sets_forked();
  }
  unlock_sockets();
  unlock_af_clan();
  unlock_epoll();
  unlock_resends();
  forking.clear(std::memory_order_release);
  if (in_child) {
    resends_forked();
    forked();
  }
  fork_is_over();
  leave_section();
}

void enter_sandbox() {
  disable();
  leave_all_pipes();
  stop_counting_pipes();
}

}  // namespace clan::preload

namespace {

// Whoever shares our sockets must find their pipes when we are gone.
void at_exit() {
  if (in_borrowed_memory()) return;
  finish_resends();
  for_each_socket(
      [](int fd, Socket& s, void*) {
        if (s.offer_name.load(std::memory_order_relaxed) != 0) withdraw_offer(s);
        (void)leave_slot(s);
        count_for_test(s);
        // Unread ones would make our end a reset.
        if (s.shared() && !s.inherited.load(std::memory_order_relaxed) && doorbells_waiting(s)) {
          (void)swallow_doorbells(fd, s);
        }
        if (!s.shared() || !s.inherited.load(std::memory_order_relaxed) || s.left_at_exit.exchange(true))
          return;
        leave_to_others(fd, s);
        auto& holders = s.mine().words[clan::socket_face::kHolders];
        if (holders.load() > 1) holders.fetch_sub(1);
      },
      nullptr);
}

__attribute__((constructor)) void start() {
  note_process();
  // Nothing more: a program without TCP connections pays for this only.
  ::pthread_atfork(
      before_fork, [] { after_fork(false); }, [] { after_fork(true); });
  take_over_connections();
  af_clan_take_over();
}

__attribute__((destructor)) void end() { at_exit(); }

}  // namespace

CLAN_INTERPOSE pid_t fork() noexcept {
  const pid_t pid = real().fork();
  if (pid < 0) {
    KeepErrno keep;
    fork_has_failed();
  }
  return pid;
}

// Forks without handlers of their own.
CLAN_INTERPOSE pid_t _Fork() noexcept {
  return static_cast<pid_t>(forked_by([] { return real()._Fork(); }));
}
CLAN_INTERPOSE int clone(int (*run)(void*), void* stack, int flags, void* argument, ...) noexcept {
  va_list list;
  va_start(list, argument);
  auto* parent_tid = va_arg(list, pid_t*);
  void* tls = va_arg(list, void*);
  auto* child_tid = va_arg(list, pid_t*);
  va_end(list);
  if ((flags & CLONE_VM) != 0) return real().clone(run, stack, flags, argument, parent_tid, tls, child_tid);
  struct Child {
    int (*run)(void*);
    void* argument;
  } child{run, argument};
  auto begin = [](void* from) {
    after_fork(true);
    const Child c = *static_cast<Child*>(from);
    return c.run(c.argument);
  };
  before_fork();
  const int pid = real().clone(begin, stack, flags, &child, parent_tid, tls, child_tid);
  {
    KeepErrno keep;
    if (pid < 0) fork_has_failed();
  }
  after_fork(false);
  return pid;
}

CLAN_INTERPOSE void _exit(int status) {
  at_exit();
  real()._exit(status);
  __builtin_unreachable();
}
CLAN_INTERPOSE void _Exit(int status) { ::_exit(status); }

// Rings are files for this limit, too: making one, or taking bytes back out of it, would be SIGXFSZ.
CLAN_INTERPOSE int prlimit(pid_t pid, __rlimit_resource resource, const rlimit* limit, rlimit* old) noexcept {
  const bool ours = pid == 0 || pid == ::getpid();
  if (ours && resource == RLIMIT_FSIZE && limit != nullptr && limit->rlim_cur < kFileBytes) enter_sandbox();
  return static_cast<int>(sys::call(SYS_prlimit64, pid, resource, limit, old));
}
CLAN_INTERPOSE int prlimit64(pid_t pid, __rlimit_resource resource, const rlimit64* limit,
                             rlimit64* old) noexcept {
  return prlimit(pid, resource, reinterpret_cast<const rlimit*>(limit), reinterpret_cast<rlimit*>(old));
}
CLAN_INTERPOSE int setrlimit(__rlimit_resource_t resource, const rlimit* limit) noexcept {
  return prlimit(0, static_cast<__rlimit_resource>(resource), limit, nullptr);
}
CLAN_INTERPOSE int setrlimit64(__rlimit_resource_t resource, const rlimit64* limit) noexcept {
  return setrlimit(resource, reinterpret_cast<const rlimit*>(limit));
}

CLAN_INTERPOSE int prctl(int option, ...) {
  va_list list;
  va_start(list, option);
  unsigned long a[4];
  for (unsigned long& argument : a) argument = va_arg(list, unsigned long);
  va_end(list);
  if (option == PR_SET_SECCOMP) enter_sandbox();
  return static_cast<int>(sys::call(SYS_prctl, option, a[0], a[1], a[2], a[3]));
}
