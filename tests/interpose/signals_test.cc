// Signal handlers that run in the middle of everything, and forks past the C library's handlers.
// The program runs with the library and without it: what holds here is the kernel's way.
#include <sched.h>
#include <setjmp.h>
#include <sys/epoll.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <functional>

#include "interpose/connection.h"

namespace clan::test {
namespace {

Pair* the_pair = nullptr;
std::atomic<int> handled{0}, wrong{0};

/// A handler for as long as it lives.
class Handler {
 public:
  Handler(int number, void (*run)(int, siginfo_t*, void*), int flags) : number_(number) {
    handled = wrong = 0;
    struct sigaction action {};
    action.sa_sigaction = run;
    action.sa_flags = SA_SIGINFO | flags;
    ::sigaction(number, &action, &before_);
  }
  ~Handler() { ::sigaction(number_, &before_, nullptr); }
  Handler(const Handler&) = delete;
  Handler& operator=(const Handler&) = delete;

 private:
  int number_;
  struct sigaction before_ {};
};

/// Sends a signal to the thread that makes it, over and over: the next one a while after the last
/// was handled.
class Storm {
 public:
  explicit Storm(int number) : target_(::pthread_self()) {
    sender_ = std::thread([this, number] {
      for (unsigned seed = 1; !over_; seed = seed * 1103515245 + 12345) {
        const int before = handled;
        ::pthread_kill(target_, number);
        while (!over_ && handled == before) ::sched_yield();
        for (unsigned i = 0; i < seed >> 20 && !over_; ++i) over_.load();
      }
    });
  }
  ~Storm() { end(); }
  Storm(const Storm&) = delete;
  Storm& operator=(const Storm&) = delete;
  void end() {
    over_ = true;
    if (sender_.joinable()) sender_.join();
  }

 private:
  pthread_t target_;
  std::atomic<bool> over_{false};
  std::thread sender_;
};

/// Reads what comes until the end, in a thread, and counts what it reads by byte.
class Counter {
 public:
  explicit Counter(int fd)
      : reader_([this, fd] {
          std::array<char, 4096> buffer;
          ssize_t n;
          while ((n = ::read(fd, buffer.data(), buffer.size())) > 0) {
            for (ssize_t i = 0; i < n; ++i) ++counts_[static_cast<unsigned char>(buffer[i])];
          }
          ended_well_ = n == 0;
        }) {}
  std::array<std::uint64_t, 256> result() {
    reader_.join();
    EXPECT_TRUE(ended_well_);
    return counts_;
  }

 private:
  std::array<std::uint64_t, 256> counts_{};
  bool ended_well_ = false;
  std::thread reader_;
};

/// So many have to interrupt something before a test ends; fewer where others keep the processor,
/// as each takes a turn of the thread that sends them.
class Interrupted {
 public:
  bool often_enough() const {
    constexpr int kHandled = 10'000, kLeast = 200;
    constexpr std::chrono::seconds kLong{4};
    return handled >= kHandled ||
           (handled >= kLeast && std::chrono::steady_clock::now() - start_ > kLong);
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

TEST(Handlers, ThatWriteToTheSocketTheyInterruptedWriteInBetween) {
  Pair pair;
  the_pair = &pair;
  Counter counter(pair.far);
  Handler handler(
      SIGUSR1,
      [](int, siginfo_t*, void*) {
        const int error = errno;
        if (::write(the_pair->near, "h", 1) != 1) ++wrong;
        ++handled;
        errno = error;
      },
      SA_RESTART);
  std::uint64_t written = 0;
  {
    Storm storm(SIGUSR1);
    const std::string text(200, 'm');
    const Interrupted interrupted;
    while (!interrupted.often_enough()) {
      const ssize_t n = ::write(pair.near, text.data(), text.size());
      ASSERT_GT(n, 0) << std::strerror(errno);
      written += static_cast<std::uint64_t>(n);
    }
  }
  EXPECT_TRUE(by_pipe(pair.near));
  ::shutdown(pair.near, SHUT_WR);
  const auto counts = counter.result();
  EXPECT_EQ(counts['m'], written);
  EXPECT_EQ(counts['h'], static_cast<std::uint64_t>(handled));
  EXPECT_EQ(wrong, 0);
}

TEST(Handlers, ThatReadTheSocketTheyInterruptedGetWhatIsNext) {
  Pair pair;
  the_pair = &pair;
  static std::uint64_t by_handler = 0;
  by_handler = 0;
  Handler handler(
      SIGUSR1,
      [](int, siginfo_t*, void*) {
        const int error = errno;
        char bytes[10];
        const ssize_t n = ::recv(the_pair->far, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n > 0) by_handler += static_cast<std::uint64_t>(n);
        if (n == 0 || (n < 0 && errno != EAGAIN)) ++wrong;
        ++handled;
        errno = error;
      },
      SA_RESTART);
  std::atomic<bool> over{false};
  std::uint64_t sent = 0;
  std::thread writer([&] {
    const std::string text(100, 'x');
    while (!over) {
      if (::write(pair.near, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
        ++wrong;
      sent += text.size();
    }
    ::shutdown(pair.near, SHUT_WR);
  });
  std::uint64_t by_us = 0;
  {
    Storm storm(SIGUSR1);
    char bytes[64];
    const Interrupted interrupted;
    while (!interrupted.often_enough()) {
      const ssize_t n = ::recv(pair.far, bytes, sizeof bytes, MSG_DONTWAIT);
      if (n > 0) by_us += static_cast<std::uint64_t>(n);
    }
  }
  over = true;
  char bytes[2000];
  ssize_t n;
  while ((n = ::recv(pair.far, bytes, sizeof bytes, 0)) > 0) by_us += static_cast<std::uint64_t>(n);
  EXPECT_EQ(n, 0);
  writer.join();
  EXPECT_EQ(by_us + by_handler, sent);
  EXPECT_GT(by_handler, 0u);
  EXPECT_EQ(wrong, 0);
}

TEST(Handlers, ThatWaitInAnEventLoopsOwnSetAndCloseSocketsDoNotWaitForThemselves) {
  Pair pair;
  the_pair = &pair;
  static int set = -1;
  set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, pair.far, &event), 0);
  Handler handler(
      SIGUSR1,
      [](int, siginfo_t*, void*) {
        const int error = errno;
        epoll_event found{};
        if (::epoll_wait(set, &found, 1, 0) < 0) ++wrong;
        pollfd p{the_pair->far, POLLIN, 0};
        if (::poll(&p, 1, 0) < 0) ++wrong;
        const int copy = ::dup(the_pair->far);
        if (copy < 0 || ::close(copy) != 0) ++wrong;
        if (::write(the_pair->near, "h", 1) != 1) ++wrong;
        ++handled;
        errno = error;
      },
      SA_RESTART);
  std::uint64_t read = 0;
  {
    Storm storm(SIGUSR1);
    const Interrupted interrupted;
    for (std::uint64_t i = 0; !interrupted.often_enough(); ++i) {
      epoll_event found{};
      const int n = ::epoll_wait(set, &found, 1, 100);
      ASSERT_TRUE(n >= 0 || errno == EINTR);
      char bytes[64];
      const ssize_t got = ::recv(pair.far, bytes, sizeof bytes, MSG_DONTWAIT);
      if (got > 0) read += static_cast<std::uint64_t>(got);
      event.events = i % 2 == 0 ? EPOLLIN | EPOLLET : EPOLLIN;
      ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_MOD, pair.far, &event), 0);
    }
  }
  ::shutdown(pair.near, SHUT_WR);
  char bytes[256];
  ssize_t n;
  while ((n = ::read(pair.far, bytes, sizeof bytes)) > 0) read += static_cast<std::uint64_t>(n);
  EXPECT_EQ(n, 0);
  EXPECT_EQ(read, static_cast<std::uint64_t>(handled));
  EXPECT_EQ(wrong, 0);
  ::close(set);
}

sigjmp_buf way_out;

TEST(Handlers, MayJumpOutOfAnyCall) {
  Pair pair;
  Counter counter(pair.far);
  static std::atomic<bool> may_jump;
  may_jump = false;
  Handler handler(
      SIGUSR1,
      [](int, siginfo_t*, void*) {
        ++handled;
        if (may_jump.exchange(false)) ::siglongjmp(way_out, 1);
      },
      0);
  static std::uint64_t most, least;  // not in registers, which a jump takes back
  most = least = 0;
  {
    Storm storm(SIGUSR1);
    const Interrupted interrupted;
    while (!interrupted.often_enough()) {
      most += 100;
      if (sigsetjmp(way_out, 1) == 0) {
        may_jump = most % 400 == 0;
        static const std::string text(100, 'x');
        const ssize_t n = ::write(pair.near, text.data(), text.size());
        may_jump = false;
        if (n > 0) least += static_cast<std::uint64_t>(n);
        if (n < 0) {
          ASSERT_EQ(errno, EINTR);
        }
      }
    }
  }
  ::shutdown(pair.near, SHUT_WR);
  const auto counts = counter.result();
  EXPECT_GE(counts['x'], least);
  EXPECT_LE(counts['x'], most);
}

TEST(Handlers, MayJumpOutOfAReadThatWaits) {
  Pair pair;
  Handler handler(
      SIGALRM, [](int, siginfo_t*, void*) { ::siglongjmp(way_out, 1); }, 0);
  static int delay_us;
  for (delay_us = 1; delay_us < 2000; delay_us += 40) {
    const itimerval often{{0, 2000}, {0, delay_us}};
    const itimerval never{};
    if (sigsetjmp(way_out, 1) == 0) {
      char byte;
      ::setitimer(ITIMER_REAL, &often, nullptr);
      (void)!::read(pair.far, &byte, 1);
      ADD_FAILURE() << "nothing was there to be read";
    }
    ::setitimer(ITIMER_REAL, &never, nullptr);
  }
  pair.talk();
  EXPECT_TRUE(by_pipe(pair.near));
}

TEST(Handlers, OfSignalsThatDoNotComeLeaveAReadAloneThatIsStopped) {
  Peer peer([](int end) {
    Handler handler(
        SIGTERM, [](int, siginfo_t*, void*) {}, 0);
    char byte = 0;
    return ::read(end, &byte, 1) == 1 && byte == 'x' ? 0 : errno;
  });
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(sleeps(peer.pid));
    ::kill(peer.pid, SIGSTOP);
    ASSERT_TRUE(comes_true([&] { return state_of(peer.pid) == 'T'; }));
    ::kill(peer.pid, SIGCONT);
  }
  ASSERT_TRUE(sleeps(peer.pid));
  ASSERT_EQ(::write(peer.fd, "x", 1), 1);
}

std::atomic<std::uint64_t> sum{0}, last{0};

TEST(Handlers, GetEachQueuedSignalOnceInItsOrderAndWithItsValue) {
  Pair pair;
  Counter counter(pair.far);
  sum = last = 0;
  Handler handler(
      SIGRTMIN,
      [](int, siginfo_t* info, void*) {
        const auto value = static_cast<std::uint64_t>(info->si_value.sival_int);
        sum += value;
        if (info->si_code != SI_QUEUE || value != last.exchange(value) + 1) ++wrong;
        ++handled;
      },
      SA_RESTART);
  constexpr int kSignals = 5000;
  const pthread_t target = ::pthread_self();
  std::atomic<bool> over{false};
  std::thread sender([&] {
    for (int i = 1; i <= kSignals; ++i) {
      while (::pthread_sigqueue(target, SIGRTMIN, sigval{i}) != 0) ::sched_yield();
    }
    over = true;
  });
  while (!over || handled < kSignals) {
    ASSERT_EQ(::write(pair.near, "0123456789", 10), 10);
  }
  sender.join();
  EXPECT_EQ(handled, kSignals);
  EXPECT_EQ(sum, std::uint64_t{kSignals} * (kSignals + 1) / 2);
  EXPECT_EQ(wrong, 0);
  ::shutdown(pair.near, SHUT_WR);
  counter.result();
}

TEST(Handlers, AreWhatTheProgramHasSet) {
  auto plain = [](int) { ++handled; };
  auto with_info = [](int, siginfo_t* info, void*) { handled += info->si_signo; };
  struct sigaction action {
  }, old{};
  action.sa_handler = plain;
  action.sa_flags = SA_NODEFER;
  ASSERT_EQ(::sigaction(SIGUSR2, &action, &old), 0);
  EXPECT_EQ(old.sa_handler, SIG_DFL);
  action.sa_sigaction = with_info;
  action.sa_flags = SA_SIGINFO | SA_RESETHAND;
  ASSERT_EQ(::sigaction(SIGUSR2, &action, &old), 0);
  EXPECT_TRUE(old.sa_handler == plain);
  EXPECT_EQ(old.sa_flags & (SA_NODEFER | SA_SIGINFO | SA_RESETHAND), SA_NODEFER);
  handled = 0;
  ::raise(SIGUSR2);
  EXPECT_EQ(handled, SIGUSR2);
  ASSERT_EQ(::sigaction(SIGUSR2, nullptr, &old), 0);
  EXPECT_EQ(old.sa_handler, SIG_DFL);
  EXPECT_EQ(::signal(SIGUSR2, plain), SIG_DFL);
  EXPECT_TRUE(::signal(SIGUSR2, SIG_IGN) == +plain);
  EXPECT_EQ(::signal(SIGUSR2, plain), SIG_IGN);
  ASSERT_EQ(::sigaction(SIGUSR2, nullptr, &old), 0);
  EXPECT_TRUE(old.sa_handler == plain);
  EXPECT_EQ(old.sa_flags & (SA_SIGINFO | SA_RESTART), SA_RESTART);
  handled = 0;
  ::raise(SIGUSR2);
  EXPECT_EQ(handled, 1);
  EXPECT_EQ(::sigaction(0, &old, nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::sigaction(SIGKILL, &old, nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::signal(SIGKILL, plain), SIG_ERR);
  ::signal(SIGUSR2, SIG_DFL);
}

TEST(Handlers, OfOneShotRunOnceThoughTheirSignalWasPutOff) {
  Pair pair;
  for (int round = 0; round < 300; ++round) {
    Handler handler(
        SIGUSR1, [](int, siginfo_t*, void*) { ++handled; },
        static_cast<int>(SA_RESETHAND | SA_RESTART));
    const pthread_t target = ::pthread_self();
    std::thread sender([&] { ::pthread_kill(target, SIGUSR1); });
    char bytes[10];
    while (handled == 0) {
      ASSERT_EQ(::write(pair.near, "0123456789", 10), 10);
      ASSERT_EQ(::read(pair.far, bytes, 10), 10);
    }
    sender.join();
    EXPECT_EQ(handled, 1);
  }
}

// --- buffers that are not there ------------------------------------------------------------------

void* no_memory() { return ::mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }

TEST(BadBuffers, AreEfaultAndTheConnectionGoesOn) {
  void* nowhere = no_memory();
  Pair pair;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(::write(pair.near, nowhere, 10), -1);
    EXPECT_EQ(errno, EFAULT);
    iovec io[] = {{nowhere, 10}, {nowhere, 20}};
    EXPECT_EQ(::writev(pair.near, io, 2), -1);
    EXPECT_EQ(errno, EFAULT);
    ASSERT_EQ(::write(pair.near, "abc", 3), 3);
    EXPECT_EQ(::read(pair.far, nowhere, 10), -1);
    EXPECT_EQ(errno, EFAULT);
    EXPECT_EQ(::recv(pair.far, nowhere, 10, MSG_PEEK), -1);
    EXPECT_EQ(errno, EFAULT);
    char bytes[3];
    ASSERT_EQ(::recv(pair.far, bytes, 3, MSG_WAITALL), 3);
    EXPECT_EQ(std::string_view(bytes, 3), "abc");
    pair.talk();
  }
  EXPECT_TRUE(by_pipe(pair.near));
  ::munmap(nowhere, 8192);
}

TEST(BadBuffers, AreNotTheFaultsOfTheProgram) {
  struct sigaction old {};
  ASSERT_EQ(::sigaction(SIGSEGV, nullptr, &old), 0);
  const sighandler_t before = old.sa_handler;
  Pair pair;
  ASSERT_EQ(::sigaction(SIGSEGV, nullptr, &old), 0);
  EXPECT_EQ(old.sa_handler, before);
  EXPECT_EQ(::signal(SIGSEGV, SIG_DFL), before);
  auto* nowhere = static_cast<volatile char*>(no_memory());
  EXPECT_EQ(result_of(child([&] {
              *nowhere = 1;
              return 0;
            })),
            -SIGSEGV);
  EXPECT_EQ(result_of(child([] {
              ::raise(SIGSEGV);
              return 0;
            })),
            -SIGSEGV);
  EXPECT_EQ(result_of(child([] {
              ::kill(::getpid(), SIGBUS);
              return 0;
            })),
            -SIGBUS);
  EXPECT_EQ(::write(pair.near, const_cast<char*>(nowhere), 1), -1);
  EXPECT_EQ(errno, EFAULT);
  {
    Handler handler(
        SIGSEGV, [](int, siginfo_t*, void*) { ::siglongjmp(way_out, 1); }, 0);
    if (sigsetjmp(way_out, 1) == 0) {
      *nowhere = 1;
      ADD_FAILURE() << "there is memory";
    }
    EXPECT_EQ(::write(pair.near, const_cast<char*>(nowhere), 1), -1);
    EXPECT_EQ(errno, EFAULT);
  }
  pair.talk();
}

TEST(BadBuffers, BehindGoodOnesLeaveThemSent) {
  // What TCP says of a message that is only partly there depends on where its pages end; ours, on
  // records.
  Pair pair;
  std::vector<char> good(100'000, 'g');
  iovec io[] = {{good.data(), good.size()}, {no_memory(), 10}};
  const ssize_t n = ::writev(pair.near, io, 2);
  ASSERT_TRUE(n > 0 || (n == -1 && errno == EFAULT));
  ASSERT_EQ(::write(pair.near, "end", 3), 3);
  ::shutdown(pair.near, SHUT_WR);
  std::string all;
  char bytes[4096];
  for (ssize_t k; (k = ::read(pair.far, bytes, sizeof bytes)) > 0;)
    all.append(bytes, static_cast<std::size_t>(k));
  EXPECT_EQ(all, std::string(static_cast<std::size_t>(std::max<ssize_t>(n, 0)), 'g') + "end");
}

// --- forks that the C library's handlers do not see ----------------------------------------------

struct Fork {
  const char* name;
  std::function<pid_t(const std::function<int()>&)> run;
};

template <typename Call>
pid_t in_child(const std::function<int()>& body, Call&& call) {
  const auto pid = static_cast<pid_t>(call());
  if (pid == 0) {
    ::alarm(20);
    ::_exit(body());
  }
  return pid;
}

const Fork kForks[] = {
    {"_Fork", [](const auto& body) { return in_child(body, [] { return ::_Fork(); }); }},
    {"syscall(SYS_fork)",
     [](const auto& body) { return in_child(body, [] { return ::syscall(SYS_fork); }); }},
    {"syscall(SYS_clone)",
     [](const auto& body) {
       return in_child(
           body, [] { return ::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr); });
     }},
    {"syscall(SYS_clone3)",
     [](const auto& body) {
       // flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls
       const std::uint64_t how[8] = {0, 0, 0, 0, SIGCHLD, 0, 0, 0};
       return in_child(body, [&] { return ::syscall(SYS_clone3, how, sizeof how); });
     }},
    {"clone",
     [](const auto& body) {
       static std::array<char, 1 << 20> stack;
       auto run = [](void* argument) {
         ::alarm(20);
         ::_exit((*static_cast<const std::function<int()>*>(argument))());
         return 0;
       };
       auto* argument = const_cast<void*>(static_cast<const void*>(&body));
       return static_cast<pid_t>(::clone(run, stack.data() + stack.size(), SIGCHLD, argument));
     }},
};

void write_all(int fd, const char* what, int times) {
  for (int i = 0; i < times; ++i) EXPECT_EQ(::write(fd, what, 1), 1);
}

TEST(Forks, PastTheCLibraryShareAConnectionAsOthersDo) {
  for (const auto& [name, run] : kForks) {
    SCOPED_TRACE(name);
    Pair pair;
    const pid_t pid = run([&] {
      write_all(pair.near, "c", 500);
      return ::close(pair.near);
    });
    ASSERT_GT(pid, 0);
    write_all(pair.near, "p", 500);
    std::string all(1000, 0);
    ASSERT_EQ(::recv(pair.far, all.data(), all.size(), MSG_WAITALL), 1000);
    EXPECT_EQ(std::count(all.begin(), all.end(), 'c'), 500);
    EXPECT_EQ(std::count(all.begin(), all.end(), 'p'), 500);
    EXPECT_EQ(result_of(pid), 0);
    // The child has closed: the connection is open, as we have it.
    pair.talk();
    pair.close_near();
    char byte;
    EXPECT_EQ(::read(pair.far, &byte, 1), 0);
  }
}

TEST(Forks, PastTheCLibraryMayHappenBeforeAConnectionMoves) {
  for (const auto& [name, run] : kForks) {
    SCOPED_TRACE(name);
    Peer peer([](int fd) { return echo(fd); }, false);
    const pid_t pid = run([&] {
      ping(peer.fd, 30);
      return ::testing::Test::HasFailure() ? 1 : 0;
    });
    ASSERT_GT(pid, 0);
    EXPECT_EQ(result_of(pid), 0);
    ping(peer.fd, 30);
    EXPECT_TRUE(by_pipe(peer.fd));
  }
}

TEST(Forks, MayBeMadeInAHandler) {
  Pair pair;
  the_pair = &pair;
  static std::array<pid_t, 64> children;
  static std::atomic<int> count;
  count = 0;
  Handler handler(
      SIGUSR1,
      [](int, siginfo_t*, void*) {
        const int error = errno;
        if (count < static_cast<int>(children.size())) {
          const pid_t pid = ::_Fork();
          if (pid == 0) {
            ::alarm(20);
            ::_exit(::write(the_pair->near, "c", 1) == 1 ? 0 : 1);
          }
          children[static_cast<std::size_t>(count++)] = pid;
        }
        ++handled;
        errno = error;
      },
      SA_RESTART);
  Counter counter(pair.far);
  {
    Storm storm(SIGUSR1);
    while (count < static_cast<int>(children.size())) {
      ASSERT_EQ(::write(pair.near, "0123456789", 10), 10);
    }
  }
  for (const pid_t pid : children) EXPECT_EQ(result_of(pid), 0);
  ::shutdown(pair.near, SHUT_WR);
  EXPECT_EQ(counter.result()['c'], children.size());
}

}  // namespace
}  // namespace clan::test
