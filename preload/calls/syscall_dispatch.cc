// syscall(): calls of the kernel by number.
#include <fcntl.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <cstdarg>
#include <cstring>
#include <type_traits>
#include <utility>

#include "calls/interpose.h"
#include "os/real.h"
#include "share/fork.h"
#include "share/passing.h"
#include "share/process_end.h"
#include "share/uring.h"

using namespace clan::preload;

namespace {

using Arguments = long[6];

long plain(long number, const Arguments& a) {
  return real().syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

template <typename T>
T argument(long word) {
  if constexpr (std::is_pointer_v<T>)
    return reinterpret_cast<T>(word);
  else
    return static_cast<T>(word);
}
template <typename Result, typename... T, std::size_t... I>
long call(Result (*function)(T...), const Arguments& a, std::index_sequence<I...>) {
  return function(argument<T>(a[I])...);
}
/// Calls the function of that name with the arguments of the system call.
template <typename Result, typename... T>
long call(Result (*function)(T...), const Arguments& a) {
  return call(function, a, std::index_sequence_for<T...>{});
}
/// fcntl() and ioctl().
template <typename Command>
long call(int (*function)(int, Command, ...), const Arguments& a) {
  return function(argument<int>(a[0]), argument<Command>(a[1]), argument<void*>(a[2]));
}

/// Reads the arguments of a call that makes a thread or a process.
clone_args asked_for(long number, const Arguments& a) {
  clone_args how{};
  if (number == SYS_clone) {
    how.flags = static_cast<unsigned long>(a[0]);
    how.stack = static_cast<unsigned long>(a[1]);
  } else if (number == SYS_clone3 && a[0] != 0 &&
             static_cast<std::size_t>(a[1]) >= CLONE_ARGS_SIZE_VER0) {
    std::memcpy(&how, argument<void*>(a[0]), CLONE_ARGS_SIZE_VER0);
  }
  return how;
}
bool starts_sandbox(long number, const Arguments& a) {
  if (number == SYS_prctl) return a[0] == PR_SET_SECCOMP;
  return a[0] == SECCOMP_SET_MODE_STRICT || a[0] == SECCOMP_SET_MODE_FILTER;
}

long pselect6(const Arguments& a) {
  // The last argument points to the mask and its size.
  const auto* mask = argument<const sigset_t* const*>(a[5]);
  return ::pselect(argument<int>(a[0]), argument<fd_set*>(a[1]), argument<fd_set*>(a[2]),
                   argument<fd_set*>(a[3]), argument<const timespec*>(a[4]),
                   mask != nullptr ? *mask : nullptr);
}
// The offset is in two words; here the first has all of it.
template <typename Function>
long at_offset(Function* function, const Arguments& a) {
  const Arguments with_one_word{a[0], a[1], a[2], a[3], a[5], 0};
  return call(function, with_one_word);
}

}  // namespace

CLAN_INTERPOSE long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  Arguments a;
  for (long& word : a) word = va_arg(list, long);
  va_end(list);
  switch (number) {
// clang-format off
#define CLAN_NUMBERED(result, name, parameters, number, test) \
  case number: return call(&::name, a);
#include "calls.def"
      // clang-format on
    case SYS_preadv2: return at_offset(&::preadv2, a);
    case SYS_pwritev2: return at_offset(&::pwritev2, a);
    case SYS_pselect6: return pselect6(a);
    case SYS_prlimit64: return call(&::prlimit, a);
    case SYS_execveat: return call(&::execveat, a);
    case SYS_io_uring_setup: {
      const long ring = real().syscall(number, a[0], a[1]);
      if (ring >= 0) ring_made();
      return ring;
    }
    case SYS_pidfd_getfd:
      return take_from(argument<int>(a[0]), argument<int>(a[1]), argument<unsigned>(a[2]));
    case SYS_io_submit: leave_for_aio(argument<const iocb* const*>(a[2]), a[1]); break;
    case SYS_seccomp:
    case SYS_prctl:
      if (starts_sandbox(number, a)) enter_sandbox(clan::reasons::Why::kSandboxed);
      break;
    case SYS_fork:
    case SYS_clone:
    case SYS_clone3: {
      const clone_args how = asked_for(number, a);
      before_clone(how.flags);
      // The child returns here, on the caller's stack.
      if ((how.flags & CLONE_VM) == 0 && how.stack == 0)
        return forked_by([&] { return plain(number, a); });
      break;
    }
    default: break;
  }
  return plain(number, a);
}
