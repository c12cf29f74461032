// Reasons why connections stay on TCP (reasons.h), in words for `clan stat` and the log.
#pragma once

#include <clan/face/reasons.h>
#include <clan/face/shared_directory.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace clan::reasons {

/// What is an option of the socket, or of an epoll set that has it.
constexpr const char* text_of_option(Why why) {
  switch (why) {
    case Why::kInq: return "TCP_INQ";
    case Why::kZeroCopyReceive: return "TCP_ZEROCOPY_RECEIVE";
    case Why::kTimestamp: return "SO_TIMESTAMP";
    case Why::kUlp: return "TCP_ULP";
    case Why::kRepair: return "TCP_REPAIR";
    case Why::kPeekOff: return "SO_PEEK_OFF";
    case Why::kUserTimeout: return "TCP_USER_TIMEOUT";
    case Why::kPacing: return "SO_MAX_PACING_RATE";
    case Why::kSocketFilter: return "a filter of the socket (SO_ATTACH_FILTER)";
    case Why::kWindowClamp: return "TCP_WINDOW_CLAMP";
    case Why::kTxDelay: return "TCP_TX_DELAY";
    case Why::kPolledSet: return "an epoll set that has it is polled, or in another set";
    default: return "";
  }
}

/// As a clause; %s: the name of a system call.
constexpr const char* text_of(Why why) {
  switch (why) {
    case Why::kUnused: return "not used enough yet";
    case Why::kSeveral: return "several processes have it";
    case Why::kNoPeer: return "the other end runs without CLAN, or may not move";
    case Why::kNotInDirectory: return "the other end has not come to CLAN_DIR";
    case Why::kTakenBack: return "the other end took it back";
    case Why::kPinned:
      return "a call is under way in another process, or it has been used in a way that is TCP's";
    case Why::kOfferLost: return "the other end went away while it was to move";
    case Why::kExcept: return "CLAN_EXCEPT";
    case Why::kOnly: return "CLAN_ONLY";
    case Why::kMemory: return "the user's connections are as many as memory allows (CLAN_MEMORY)";
    case Why::kMappings:
      return "its process has as many connections as half of its mappings allow (vm.max_map_count)";
    case Why::kNoUnix: return "sockets of AF_UNIX are refused, by which the ends meet";
    case Why::kNoNetlink:
      return "the kernel does not say who owns it: it takes AF_NETLINK, or /proc/self/net/tcp";
    case Why::kOtherUser:
      return "the other end belongs to another user, which CLAN_UIDS does not name";
    case Why::kUnmappedUser: return "the other end's user has no number in this user namespace";
    case Why::kNotOwner:
      return "the end that offered shared memory is not the connection's other end";
    case Why::kDirectory: return "no offer can be made in CLAN_DIR";
    case Why::kVersion: return "the other end has another version of CLAN";
    case Why::kAddressSpace: return "the limit of address space (ulimit -v)";
    case Why::kNoMemory: return "shared memory is not to be had (memfd_create)";
    case Why::kNoDescriptors: return "the limit of descriptors (ulimit -n)";
    case Why::kStandardStream: return "it is standard input or output";
    case Why::kUrgent: return "urgent data (MSG_OOB)";
    case Why::kZeroCopy: return "MSG_ZEROCOPY";
    case Why::kSigio: return "SIGIO (O_ASYNC)";
    case Why::kSpliced: return "splice()";
    case Why::kSharedSet: return "it is in an epoll set that several processes use";
    case Why::kPassed: return "it was passed to another process (SCM_RIGHTS)";
    case Why::kExecuted: return "it was handed to another program (exec, dup2)";
    case Why::kHalfClosed: return "it is half closed (shutdown)";
    case Why::kDisconnected: return "its socket is connected anew";
    case Why::kForked: return "a child of fork cannot share it";
    case Why::kUring: return "an io_uring";
    case Why::kBypass: return "a module calls the C library past CLAN (RTLD_DEEPBIND or dlmopen)";
    case Why::kFilter: return "the filter of system calls refuses %s";
    case Why::kRefused: return "%s is refused";
    case Why::kSandboxed: return "the program has put itself under a filter of system calls";
    case Why::kFileLimit: return "the limit of file sizes (ulimit -f)";
    case Why::kNoNetwork: return "there is no network for it (CLAN_KEY, CLAN_NETWORK_MODE)";
    case Why::kOutlived: return "an epoll set has it by a descriptor that was closed";
    case Why::kNotCounted:
      return "bytes of it went past CLAN (a BPF sockmap, or the program's own system calls)";
    case Why::kOwnTable: return "a thread has a table of descriptors of its own (unshare, clone)";
    case Why::kFastOpen: return "MSG_FASTOPEN";
    case Why::kSelfConnected: return "its socket is connected to itself";
    case Why::kBothConnected: return "both ends have connected, and none has accepted";
    case Why::kOtherNetwork: return "its thread is in another network namespace than the socket";
    case Why::kUnseenSet: return "its process has an epoll set that was made past the C library";
    case Why::kAio: return "asynchronous I/O (aio_read, lio_listio, io_submit)";
    case Why::kStream: return "a stream of the C library (fdopen)";
    default: return text_of_option(why);
  }
}

/// Names of system calls that connections in shared memory need; socket() by its family.
struct CallName {
  std::uint32_t number;
  const char* name;
};
constexpr std::uint32_t socket_of(std::uint32_t family) { return SYS_socket | family << 16; }
constexpr CallName kCallNames[] = {
    {SYS_wait4, "wait4"},
    {socket_of(AF_UNIX), "socket(AF_UNIX)"},
    {socket_of(AF_NETLINK), "socket(AF_NETLINK)"},
    {SYS_bind, "bind"},
    {SYS_listen, "listen"},
    {SYS_connect, "connect"},
    {SYS_accept4, "accept4"},
    {SYS_getsockname, "getsockname"},
    {SYS_getpeername, "getpeername"},
    {SYS_getsockopt, "getsockopt"},
    {SYS_setsockopt, "setsockopt"},
    {SYS_shutdown, "shutdown"},
    {SYS_sendmsg, "sendmsg"},
    {SYS_recvmsg, "recvmsg"},
    {SYS_sendto, "sendto"},
    {SYS_recvfrom, "recvfrom"},
    {SYS_ioctl, "ioctl"},
    {SYS_fcntl, "fcntl"},
    {SYS_ppoll, "ppoll"},
    {SYS_epoll_ctl, "epoll_ctl"},
    {SYS_epoll_pwait, "epoll_pwait"},
    {SYS_eventfd2, "eventfd2"},
    {SYS_pipe2, "pipe2"},
    {SYS_epoll_create1, "epoll_create1"},
    {SYS_timerfd_create, "timerfd_create"},
    {SYS_timerfd_settime, "timerfd_settime"},
    {SYS_timerfd_gettime, "timerfd_gettime"},
    {SYS_memfd_create, "memfd_create"},
    {SYS_ftruncate, "ftruncate"},
    {SYS_fstatfs, "fstatfs"},
    {SYS_newfstatat, "newfstatat"},
    {SYS_openat, "openat"},
    {SYS_readlinkat, "readlinkat"},
    {SYS_getdents64, "getdents64"},
    {SYS_read, "read"},
    {SYS_write, "write"},
    {SYS_pread64, "pread64"},
    {SYS_close, "close"},
    {SYS_mmap, "mmap"},
    {SYS_munmap, "munmap"},
    {SYS_mremap, "mremap"},
    {SYS_madvise, "madvise"},
    {SYS_futex, "futex"},
    {SYS_nanosleep, "nanosleep"},
    {SYS_sched_yield, "sched_yield"},
    {SYS_getpid, "getpid"},
    {SYS_gettid, "gettid"},
    {SYS_kill, "kill"},
    {SYS_tgkill, "tgkill"},
    {SYS_rt_tgsigqueueinfo, "rt_tgsigqueueinfo"},
    {SYS_rt_sigaction, "rt_sigaction"},
    {SYS_rt_sigprocmask, "rt_sigprocmask"},
    {SYS_prlimit64, "prlimit64"},
};
constexpr const char* name_of_call(std::uint32_t number) {
  for (const CallName& one : kCallNames) {
    if (one.number == number) return one.name;
  }
  return "a system call";
}

/// The clause, with what its number says.
inline void describe(const Reason& reason, char* to, std::size_t size) {
  if (reason.why == Why::kFilter || reason.why == Why::kRefused) {
    const bool by_filter = reason.why == Why::kFilter;
    std::snprintf(to, size, by_filter ? "the filter of system calls refuses %s" : "%s is refused",
                  name_of_call(reason.number));
  } else if (reason.why == Why::kDirectory && reason.number != 0) {
    const int error = static_cast<int>(reason.number);
    const char* const fault = why_no_offer(error);
    std::snprintf(to, size, "%s: %s", text_of(reason.why),
                  fault != nullptr ? fault : std::strerror(error));
  } else if (reason.why == Why::kUnused && reason.number >= kCallsNeeded) {
    std::snprintf(to, size, "%s: has not met its other end in %u calls", text_of(reason.why),
                  reason.number);
  } else if (reason.why == Why::kUnused && reason.number < kFirstCalls) {
    std::snprintf(to, size, "%s: fewer than %u calls of %u", text_of(reason.why), kFirstCalls,
                  kCallsNeeded);
  } else if (reason.why == Why::kUnused) {
    std::snprintf(to, size, "%s: %u calls of %u", text_of(reason.why), reason.number, kCallsNeeded);
  } else {
    std::snprintf(to, size, "%s", text_of(reason.why));
  }
}

}  // namespace clan::reasons
