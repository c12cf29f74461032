// What the library asks of the kernel for itself is refused, one call at a time: memory, memfds,
// descriptors, sockets of its own, options of the program's. A connection that cannot move stays on
// TCP, one that cannot stay goes back, and the program notices nothing.
//
// A client and a server talk in two processes; one of them is traced. A system call is the
// library's own if its instruction lies in the library. A first run counts those that may fail,
// then there is a run for each of them in which it does. Without the library the same conversation
// is run once.
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ptrace.h>
#include <sys/user.h>

#include <cstdio>
#include <map>
#include <string>

#include "connection.h"

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

namespace clan::test {
namespace {

constexpr int kConnections = 2;
constexpr int kPings = 40;
constexpr std::size_t kPing = 200;
constexpr std::size_t kBulk = 300'000;

// --- the conversation ----------------------------------------------------------------------------

/// A stream of bytes that both ends know. Each call says whether all went well.
struct Talk {
  int fd;
  std::uint32_t out = 1, in = 1;

  static char next(std::uint32_t& state) {
    state = state * 1664525 + 1013904223;
    return static_cast<char>(state >> 24);
  }
  static bool failed(const char* what, int error) {
    std::fprintf(stderr, "%s: %s\n", what, std::strerror(error));
    return false;
  }
  bool say(std::size_t n) {
    std::string bytes(n, '\0');
    for (char& c : bytes) c = next(out);
    for (std::size_t at = 0; at < n;) {
      const ssize_t sent = ::send(fd, bytes.data() + at, n - at, MSG_NOSIGNAL);
      if (sent <= 0) return failed("send", errno);
      at += static_cast<std::size_t>(sent);
    }
    return true;
  }
  bool hear(std::size_t n) {
    std::string bytes(n, '\0');
    for (std::size_t at = 0; at < n;) {
      const ssize_t got = ::recv(fd, bytes.data() + at, n - at, 0);
      if (got <= 0) return failed("recv", got == 0 ? 0 : errno);
      at += static_cast<std::size_t>(got);
    }
    for (const char c : bytes) {
      if (c != next(in)) return failed("bytes", 0);
    }
    return true;
  }
  bool ends() {
    char byte;
    return ::recv(fd, &byte, 1, 0) == 0;
  }
};

bool ping_pong(Talk& talk, bool client, int times) {
  for (int i = 0; i < times; ++i) {
    if (client ? !(talk.say(kPing) && talk.hear(kPing)) : !(talk.hear(kPing) && talk.say(kPing)))
      return false;
  }
  return true;
}

bool waits(int fd, bool by_epoll) {
  if (!by_epoll) {
    pollfd one{fd, POLLIN, 0};
    return ::poll(&one, 1, 10'000) == 1 && (one.revents & POLLIN) != 0;
  }
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{EPOLLIN, {}};
  const bool good = ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0 &&
                    ::epoll_wait(set, &event, 1, 10'000) == 1 && (event.events & EPOLLIN) != 0;
  ::close(set);
  return good;
}

/// A child that has the connection too does a part of it.
bool child_talks(Talk& talk, bool client) {
  const pid_t other = child([&] { return ping_pong(talk, client, 3) ? 0 : 1; }, 20);
  int status = 0;
  if (::waitpid(other, &status, 0) != other || status != 0) return false;
  std::string passed(3 * kPing, '\0');  // both streams are that much further
  for (char& c : passed) c = Talk::next(talk.out);
  for (char& c : passed) c = Talk::next(talk.in);
  return true;
}

/// Returns 0, or the step that failed.
int converse(int fd, bool client, bool forks) {
  Talk talk{fd};
  int step = 1;
  const auto went = [&](bool well) { return well && ++step > 0; };
  const auto both = [&](bool client_first, std::size_t n) {
    return client == client_first ? talk.say(n) : talk.hear(n);
  };
  if (!went(ping_pong(talk, client, kPings)) || !went(both(true, kBulk)) ||
      !went(both(false, kBulk))) {
    return step;
  }
  for (const bool by_epoll : {false, true}) {
    ::usleep(client ? 0 : 3000);
    if (!went(client ? waits(fd, by_epoll) && talk.hear(1) : talk.say(1))) return step;
    ::usleep(client ? 3000 : 0);
    if (!went(client ? talk.say(1) : waits(fd, by_epoll) && talk.hear(1))) return step;
  }
  if (!went(forks ? child_talks(talk, client) : ping_pong(talk, client, 3))) return step;
  if (!went(ping_pong(talk, client, 3))) return step;
  if (client && !went(::shutdown(fd, SHUT_WR) == 0 && talk.hear(1) && talk.ends())) return step;
  if (!client && !went(talk.ends() && talk.say(1))) return step;
  return went(::close(fd) == 0) ? 0 : step;
}

int serve(int listening, bool forks) {
  for (int i = 0; i < kConnections; ++i) {
    const int fd = ::accept(listening, nullptr, nullptr);
    if (const int step = fd < 0 ? 99 : converse(fd, false, forks); step != 0) return step;
  }
  return 0;
}

int call_server(std::uint16_t port, bool forks) {
  for (int i = 0; i < kConnections; ++i) {
    const int fd = connect_to(port);
    if (const int step = fd < 0 ? 99 : converse(fd, true, forks); step != 0) return step;
  }
  return 0;
}

// --- refusals ------------------------------------------------------------------------------------

/// Where the library's instructions lie, here and in children.
std::vector<std::pair<std::uintptr_t, std::uintptr_t>> text_of_library() {
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> found;
  std::FILE* const maps = std::fopen("/proc/self/maps", "re");
  char line[512];
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    unsigned long begin = 0, end = 0;
    char rights[5] = {};
    if (std::strstr(line, "libclan-preload.so") != nullptr &&
        std::sscanf(line, "%lx-%lx %4s", &begin, &end, rights) == 3 && rights[2] == 'x') {
      found.emplace_back(begin, end);
    }
  }
  std::fclose(maps);
  return found;
}

int domain_of(pid_t process, std::uint64_t fd) {
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, process, 0));
  const int here = static_cast<int>(instruction(SYS_pidfd_getfd, pidfd, static_cast<long>(fd)));
  int domain = -1;
  socklen_t size = sizeof domain;
  (void)::getsockopt(here, SOL_SOCKET, SO_DOMAIN, &domain, &size);
  for (const int opened : {pidfd, here}) {
    if (opened >= 0) ::close(opened);
  }
  return domain;
}

/// How the kernel would refuse the call for want of something; 0: it would not.
int refusal(pid_t process, std::uint64_t number, const std::uint64_t* arguments) {
  switch (number) {
    case SYS_mmap:
    case SYS_mremap:
    case SYS_memfd_create:
    case SYS_ftruncate:
    case SYS_listen:
    case SYS_epoll_ctl: return ENOMEM;
    case SYS_socket:
    case SYS_accept4:
    case SYS_openat:
    case SYS_epoll_create1:
    case SYS_eventfd2:
    case SYS_timerfd_create:
    case SYS_pidfd_open:
    case SYS_pidfd_getfd: return EMFILE;
    case SYS_fcntl:
      return arguments[1] == F_DUPFD || arguments[1] == F_DUPFD_CLOEXEC ? EMFILE
             : arguments[1] == F_ADD_SEALS                              ? EBUSY
                                                                        : 0;
    case SYS_bind: return EADDRINUSE;
    case SYS_connect: return ECONNREFUSED;
    case SYS_setsockopt: return ENOBUFS;
    case SYS_sendmsg:
    case SYS_recvmsg:
    case SYS_sendto:
    case SYS_recvfrom:  // on the program's socket it is the program's call
      return domain_of(process, arguments[0]) == AF_INET ? 0 : ENOBUFS;
    default: return 0;
  }
}

struct Outcome {
  int ended = 0;  ///< as result_of()
  int calls = 0;  ///< that could have been refused
  std::uint64_t refused = 0;
};

class Tracer {
 public:
  /// Lets a process that has asked for it run to its end. Call number `refuse` is refused, 0: none.
  Outcome run(pid_t process, int refuse) {
    Outcome outcome;
    int status = 0, signal = 0;
    if (::waitpid(process, &status, 0) != process || !WIFSTOPPED(status)) return {-SIGTRAP, 0, 0};
    ::ptrace(PTRACE_SETOPTIONS, process, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    for (int error = 0;;) {
      ::ptrace(PTRACE_SYSCALL, process, nullptr, signal);
      signal = 0;
      if (::waitpid(process, &status, 0) != process) return {-SIGTRAP, 0, 0};
      if (!WIFSTOPPED(status)) break;
      if (WSTOPSIG(status) != (SIGTRAP | 0x80)) {
        signal = WSTOPSIG(status);
        continue;
      }
      if (error != 0) {  // the end of the call
        set(process, [&](user_regs_struct& r) { r.rax = static_cast<unsigned long>(-error); });
        error = 0;
        continue;
      }
      __ptrace_syscall_info call{};
      ::ptrace(PTRACE_GET_SYSCALL_INFO, process, sizeof call, &call);
      if (call.op != PTRACE_SYSCALL_INFO_ENTRY || !is_librarys(call.instruction_pointer)) continue;
      const int how =
          refusal(process, call.entry.nr, reinterpret_cast<std::uint64_t*>(call.entry.args));
      if (how == 0 || ++outcome.calls != refuse) continue;
      error = how;
      outcome.refused = call.entry.nr;
      set(process, [](user_regs_struct& r) { r.orig_rax = ~0ul; });
    }
    outcome.ended = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return outcome;
  }

 private:
  template <typename Change>
  static void set(pid_t process, Change&& change) {
    user_regs_struct registers{};
    ::ptrace(PTRACE_GETREGS, process, nullptr, &registers);
    change(registers);
    ::ptrace(PTRACE_SETREGS, process, nullptr, &registers);
  }
  bool is_librarys(std::uint64_t at) const {
    for (const auto& [begin, end] : text_) {
      if (at >= begin && at <= end) return true;
    }
    return false;
  }
  const std::vector<std::pair<std::uintptr_t, std::uintptr_t>> text_ = text_of_library();
};

class Faults : public testing::TestWithParam<bool> {
 protected:
  /// A conversation of which the client, or the server, is traced. `other`: how that one ended.
  Outcome conversation(int refuse, int* other) {
    const bool client = GetParam();
    const int listening = listener();
    const std::uint16_t port = port_of(listening);
    const auto end = [&](bool is_client) {
      if (is_client == client) {
        ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
        ::raise(SIGSTOP);
      }
      return is_client ? call_server(port, client) : serve(listening, !client);
    };
    const pid_t server = child([&] { return end(false); }, 20);
    const pid_t caller = child([&] { return end(true); }, 20);
    ::close(listening);
    const Outcome outcome = tracer_.run(client ? caller : server, refuse);
    *other = result_of(client ? server : caller);
    return outcome;
  }
  Tracer tracer_;
};

TEST_P(Faults, OfOneCallOfTheLibraryAreNotNoticed) {
  if (result_of(child([] { return ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0 ? 0 : 1; })) !=
      0) {
    GTEST_SKIP() << "ptrace() is forbidden";
  }
  int other = 0;
  const Outcome whole = conversation(0, &other);
  ASSERT_EQ(whole.ended, 0);
  ASSERT_EQ(other, 0);
  if (!preloaded()) return;
  ASSERT_GT(whole.calls, 20);
  std::map<std::uint64_t, int> refused;
  for (int n = 1; n <= whole.calls; ++n) {
    const Outcome outcome = conversation(n, &other);
    if (outcome.refused == 0) continue;  // this time there were fewer
    ++refused[outcome.refused];
    EXPECT_TRUE(outcome.ended == 0 && other == 0)
        << "call " << n << ", system call " << outcome.refused << " refused for the "
        << refused[outcome.refused] << ". time: it ended with " << outcome.ended
        << ", the other one with " << other << (outcome.ended == -SIGALRM ? " (hangs)" : "");
  }
  EXPECT_GT(refused[SYS_mmap], 0);
  for (const auto& [number, times] : refused)
    std::printf("system call %d: %d times\n", static_cast<int>(number), times);
}

INSTANTIATE_TEST_SUITE_P(, Faults, testing::Bool(), [](const auto& client) {
  return std::string(client.param ? "Client" : "Server");
});

}  // namespace
}  // namespace clan::test
