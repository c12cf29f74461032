#include "libfabric/refusals.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/ucontext.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <filesystem>
#include <fstream>

namespace {

std::atomic<std::uintptr_t> g_text_begin{0}, g_text_end{0};  ///< of the provider
std::atomic<long> g_calls{0};                                ///< that could have been refused
std::atomic<long> g_refuse{0};                               ///< the number of one that is; 0: none
std::atomic<const char*> g_refused{nullptr};                 ///< its name

bool refuses(const char* name, const void* returns_to) {
  const auto at = reinterpret_cast<std::uintptr_t>(returns_to);
  if (at < g_text_begin || at >= g_text_end || ++g_calls != g_refuse) return false;
  g_refused = name;
  return true;
}

}  // namespace

// `error`: the kernel's for want of something.
#define CLAN_MAY_FAIL(Type, name, failed, error, parameters, throws, ...)                   \
  extern "C" Type name parameters throws {                                                  \
    static auto* const real = reinterpret_cast<decltype(&name)>(::dlsym(RTLD_NEXT, #name)); \
    if (!refuses(#name, __builtin_return_address(0))) return real(__VA_ARGS__);             \
    errno = error;                                                                          \
    return failed;                                                                          \
  }

CLAN_MAY_FAIL(void*, mmap, MAP_FAILED, ENOMEM,
              (void* at, std::size_t bytes, int prot, int flags, int fd, off_t offset), __THROW, at,
              bytes, prot, flags, fd, offset)
CLAN_MAY_FAIL(int, memfd_create, -1, ENOMEM, (const char* name, unsigned flags), __THROW, name,
              flags)
CLAN_MAY_FAIL(int, ftruncate, -1, ENOMEM, (int fd, off_t bytes), __THROW, fd, bytes)
CLAN_MAY_FAIL(int, socket, -1, EMFILE, (int domain, int type, int protocol), __THROW, domain, type,
              protocol)
CLAN_MAY_FAIL(int, bind, -1, ENOMEM, (int fd, const sockaddr* to, socklen_t size), __THROW, fd, to,
              size)
CLAN_MAY_FAIL(int, listen, -1, ENOMEM, (int fd, int most), __THROW, fd, most)
CLAN_MAY_FAIL(int, connect, -1, ENOMEM, (int fd, const sockaddr* to, socklen_t size), , fd, to,
              size)
CLAN_MAY_FAIL(int, accept4, -1, EMFILE, (int fd, sockaddr* from, socklen_t* size, int flags), , fd,
              from, size, flags)
CLAN_MAY_FAIL(int, getsockopt, -1, ENOBUFS,
              (int fd, int level, int option, void* value, socklen_t* size), __THROW, fd, level,
              option, value, size)
CLAN_MAY_FAIL(int, setsockopt, -1, ENOBUFS,
              (int fd, int level, int option, const void* value, socklen_t size), __THROW, fd,
              level, option, value, size)
CLAN_MAY_FAIL(ssize_t, sendmsg, -1, ENOBUFS, (int fd, const msghdr* message, int flags), , fd,
              message, flags)
CLAN_MAY_FAIL(ssize_t, recvmsg, -1, ENOMEM, (int fd, msghdr* message, int flags), , fd, message,
              flags)
CLAN_MAY_FAIL(int, eventfd, -1, EMFILE, (unsigned count, int flags), __THROW, count, flags)
CLAN_MAY_FAIL(int, epoll_create1, -1, EMFILE, (int flags), __THROW, flags)
CLAN_MAY_FAIL(int, epoll_ctl, -1, ENOMEM, (int set, int what, int fd, epoll_event* event), __THROW,
              set, what, fd, event)

extern "C" int open(const char* path, int flags, ...) {
  static auto* const real = reinterpret_cast<decltype(&open)>(::dlsym(RTLD_NEXT, "open"));
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  if (!refuses("open", __builtin_return_address(0))) return real(path, flags, mode);
  errno = EMFILE;
  return -1;
}

namespace {

struct Refusal {
  const char* name = nullptr;  ///< nullptr: it is not refused
  int error = 0;
};
/// Finds the refusal of a call that the engine makes by its number.
Refusal refusal_of(long number, long second) {
  switch (number) {
    case SYS_mmap: return {"mmap", ENOMEM};
    case SYS_memfd_create: return {"memfd_create", ENOMEM};
    case SYS_ftruncate: return {"ftruncate", ENOMEM};
    case SYS_openat: return {"open", EMFILE};
    case SYS_fcntl:
      if (second == F_DUPFD_CLOEXEC) return {"dup", EMFILE};
      return {};
    default: return {};
  }
}
constexpr unsigned kByNumber[] = {SYS_mmap, SYS_memfd_create, SYS_ftruncate, SYS_openat, SYS_fcntl};

}  // namespace

// With a sanitizer the engine calls by this.
extern "C" long syscall(long number, ...) __THROW {
  static auto* const real = reinterpret_cast<decltype(&syscall)>(::dlsym(RTLD_NEXT, "syscall"));
  va_list more;
  va_start(more, number);
  long words[6];
  for (long& word : words) word = va_arg(more, long);
  va_end(more);
  const Refusal refusal = refusal_of(number, words[1]);
  if (refusal.name == nullptr || !refuses(refusal.name, __builtin_return_address(0)))
    return real(number, words[0], words[1], words[2], words[3], words[4], words[5]);
  errno = refusal.error;
  return -1;
}

// Otherwise by an instruction of its own: a filter of the kernel's lets us have those, as SIGSYS,
// which no thread of the provider's may block.
extern "C" int pthread_sigmask(int how, const sigset_t* set, sigset_t* old) __THROW {
  static auto* const real =
      reinterpret_cast<decltype(&pthread_sigmask)>(::dlsym(RTLD_NEXT, "pthread_sigmask"));
  sigset_t without;
  if (set != nullptr && how != SIG_UNBLOCK) {
    without = *set;
    ::sigdelset(&without, SIGSYS);
    set = &without;
  }
  return real(how, set, old);
}

namespace clan::test {
namespace {

void answer(int, siginfo_t*, void* context) {
  greg_t* const r = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const int before = errno;
  const Refusal refusal = refusal_of(r[REG_RAX], r[REG_RSI]);
  long result;
  if (refusal.name != nullptr && refuses(refusal.name, reinterpret_cast<void*>(r[REG_RIP]))) {
    result = -refusal.error;
  } else {
    result =
        ::syscall(r[REG_RAX], r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8], r[REG_R9]);
    if (result == -1) result = -errno;
  }
  r[REG_RAX] = result;
  errno = before;
}

/// Finds the provider, which libfabric loads once.
void find_provider() {
  ASSERT_NE(get_info(make_hints()), nullptr);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    char rights[5] = {};
    if (line.find("libclan-fi.so") != std::string::npos &&
        std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, rights) == 3 && rights[2] == 'x') {
      g_text_begin = begin;
      g_text_end = end;
    }
  }
  ASSERT_NE(g_text_end, 0u);
}

/// From now on calls by number out of the provider's instructions come to answer().
void filter_calls() {
  struct sigaction action {};
  action.sa_sigaction = answer;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  ASSERT_EQ(::sigaction(SIGSYS, &action, nullptr), 0);
  const auto low = [](std::uintptr_t at) { return static_cast<std::uint32_t>(at); };
  const auto high = [](std::uintptr_t at) { return static_cast<std::uint32_t>(at >> 32); };
  ASSERT_EQ(high(g_text_begin), high(g_text_end));
  constexpr auto kIp = offsetof(seccomp_data, instruction_pointer);
  std::vector<sock_filter> program{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  constexpr auto kNumbers = std::size(kByNumber);
  for (std::size_t i = 0; i < kNumbers; ++i)
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kByNumber[i],
                               static_cast<std::uint8_t>(kNumbers - i), 0));
  program.insert(
      program.end(),
      {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW), BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kIp + 4),
       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, high(g_text_begin), 0, 3),
       BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kIp),
       BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, low(g_text_begin), 0, 1),
       BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, low(g_text_end), 0, 1),
       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP)});
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter), 0);
}

}  // namespace

std::pair<int, int> left_open() {
  std::pair<int, int> n{0, 0};
  for ([[maybe_unused]] const auto& fd : std::filesystem::directory_iterator("/proc/self/fd"))
    ++n.first;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) n.second += line.find("/memfd:") != line.npos;
  return n;
}

bool well(ssize_t rc) {
  EXPECT_TRUE(rc >= 0 || (rc > -1000 && std::string(fi_strerror(static_cast<int>(-rc))) != ""))
      << rc;
  return rc >= 0;
}

void Round::begin(long refuse) {
  g_refused = nullptr;
  g_calls = 0;
  g_refuse = refuse;
}
void Round::end() { g_refuse = 0; }
const char* Round::refused() { return g_refused; }
long Round::calls() { return g_calls; }

void End::work(std::map<void*, int>* done) {
  fi_cq_tagged_entry entry;
  fi_cq_err_entry error{};
  const ssize_t n = fi_cq_read(cq.get(), &entry, 1);
  if (n == 1) ++(*done)[entry.op_context];
  if (n == -FI_EAVAIL && fi_cq_readerr(cq.get(), &error, 0) == 1) --(*done)[error.op_context];
}

namespace {

/// `from` says so many bytes to `to`, or with 0 writes into its memory. False: it has failed.
bool say(End& from, End& to, std::size_t bytes) {
  static const auto out = pattern(100'000, 1);
  std::vector<char> in(out.size(), '\0');
  std::map<void*, int> done;
  int sends = 0, receives = 0;
  if (bytes > 0 && !well(fi_recv(to.ep.get(), in.data(), in.size(), nullptr, FI_ADDR_UNSPEC,
                                 &receives)))
    return false;
  ssize_t rc = -FI_EAGAIN;
  EXPECT_TRUE(eventually([&] {
    if (rc == -FI_EAGAIN) {
      rc = bytes > 0 ? fi_send(from.ep.get(), out.data(), bytes, nullptr, from.peer, &sends)
                     : fi_write(from.ep.get(), out.data(), sizeof from.memory, nullptr, from.peer,
                                0, 5, &sends);
    }
    from.work(&done);
    to.work(&done);
    return (rc != 0 && rc != -FI_EAGAIN) || done[&sends] < 0 || done[&receives] < 0 ||
           (done[&sends] > 0 && (bytes == 0 || done[&receives] > 0));
  })) << "hangs: "
      << rc;
  if (!well(rc) || done[&sends] <= 0 || (bytes > 0 && done[&receives] <= 0)) {
    if (bytes == 0) return false;
    (void)fi_cancel(&to.ep->fid, &receives);  // it is not to take what is said later
    EXPECT_TRUE(eventually([&] {
      to.work(&done);
      from.work(&done);
      return done[&receives] != 0;
    }));
    return false;
  }
  EXPECT_TRUE(
      std::equal(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(bytes), in.begin()));
  EXPECT_TRUE(bytes > 0 || std::memcmp(to.memory, out.data(), 64) == 0);
  return true;
}

}  // namespace

bool talk(End& a, End& b) {
  for (const bool first : {true, false}) {
    for (const std::size_t bytes : {std::size_t{8}, std::size_t{100'000}, std::size_t{0}}) {
      if (!say(first ? a : b, first ? b : a, bytes)) return false;
    }
  }
  return true;
}

void in_a_process_of_its_own(void (*test)()) {
  find_provider();
  std::fflush(stdout);
  const pid_t process = ::fork();
  if (process == 0) {
    filter_calls();
    if (!testing::Test::HasFailure()) test();
    std::fflush(stdout);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(process, &status, 0), process);
  EXPECT_EQ(status, 0);
}

}  // namespace clan::test
