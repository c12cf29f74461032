// A process's life: start, fork, exit, and the limits and sandboxes it puts on itself.
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdlib>

#include "af_clan/af_clan_table.h"
#include "calls/interpose.h"
#include "clan/face/pipe.h"
#include "clan/face/settings.h"
#include "demote/demote.h"
#include "os/config.h"
#include "os/memory_owner.h"
#include "os/real.h"
#include "os/sandbox.h"
#include "os/signals.h"
#include "os/sys.h"
#include "share/fork.h"
#include "share/process_end.h"
#include "table/internal_fds.h"
#include "table/unseen_sets.h"

using namespace clan::preload;

namespace {

__attribute__((constructor)) void start() {
  note_process();
  af_clan_take_over();
  ::at_quick_exit(at_exit);  // registered first, so it runs last
  ::pthread_atfork(
      before_fork, [] { after_fork(false); }, [] { after_fork(true); });
  if (!is_filtered()) see_sets_at_start();
}

constexpr int kLast = 101;  ///< destructors without a number run before
__attribute__((destructor(kLast))) void end() { at_exit(); }

}  // namespace

CLAN_INTERPOSE pid_t fork() noexcept {
  leave_all_remote();  // before handlers that stop the component's threads
  const pid_t pid = real().fork();
  if (pid < 0) {
    KeepErrno keep;
    fork_has_failed();
  }
  return pid;
}

// These two call no handlers of pthread_atfork().
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
  before_clone(static_cast<unsigned>(flags));
  if ((flags & CLONE_VM) != 0)
    return real().clone(run, stack, flags, argument, parent_tid, tls, child_tid);
  struct Child {
    int (*run)(void*);
    void* argument;
  } child{run, argument};
  auto begin = [](void* from) {
    after_fork(true);
    const Child c = *static_cast<Child*>(from);
    return c.run(c.argument);
  };
  return static_cast<int>(forked_by(
      [&] { return real().clone(begin, stack, flags, &child, parent_tid, tls, child_tid); }));
}

CLAN_INTERPOSE int unshare(int flags) noexcept {
  if ((flags & CLONE_FILES) != 0) before_leaving_table();
  return real().unshare(flags);
}

CLAN_INTERPOSE void _exit(int status) {
  at_exit();
  real()._exit(status);
  __builtin_unreachable();
}
CLAN_INTERPOSE void _Exit(int status) { ::_exit(status); }

// The limit holds for the files of rings, too: making one, or taking bytes back, would be SIGXFSZ.
CLAN_INTERPOSE int prlimit(pid_t pid, __rlimit_resource resource, const rlimit* limit,
                           rlimit* old) noexcept {
  const bool ours = pid == 0 || pid == ::getpid();
  if (ours && resource == RLIMIT_FSIZE && limit != nullptr && limit->rlim_cur < clan::kFileBytes)
    enter_sandbox(clan::reasons::Why::kFileLimit);
  return static_cast<int>(sys::call(SYS_prlimit64, pid, resource, limit, old));
}
CLAN_INTERPOSE int prlimit64(pid_t pid, __rlimit_resource resource, const rlimit64* limit,
                             rlimit64* old) noexcept {
  return prlimit(pid, resource, reinterpret_cast<const rlimit*>(limit),
                 reinterpret_cast<rlimit*>(old));
}
CLAN_INTERPOSE int setrlimit(__rlimit_resource_t resource, const rlimit* limit) noexcept {
  return prlimit(0, static_cast<__rlimit_resource>(resource), limit, nullptr);
}
CLAN_INTERPOSE int setrlimit64(__rlimit_resource_t resource, const rlimit64* limit) noexcept {
  return setrlimit(resource, reinterpret_cast<const rlimit*>(limit));
}

CLAN_INTERPOSE int mlockall(int flags) noexcept {
  if ((flags & MCL_FUTURE) != 0) clan::Pipe::process_locks_memory(true);
  return real().mlockall(flags);
}

CLAN_INTERPOSE int prctl(int option, ...) {
  va_list list;
  va_start(list, option);
  unsigned long a[4];
  for (unsigned long& argument : a) argument = va_arg(list, unsigned long);
  va_end(list);
  if (option == PR_SET_SECCOMP) enter_sandbox(clan::reasons::Why::kSandboxed);
  return static_cast<int>(sys::call(SYS_prctl, option, a[0], a[1], a[2], a[3]));
}
