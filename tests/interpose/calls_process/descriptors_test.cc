// Copies of descriptors, their limits and flags.
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>

#include "helpers.h"

namespace clan::test {
namespace {

TEST(Descriptors, TellHowMuchIsToBeRead) {
  Pair pair;
  for (const unsigned long request :
       {static_cast<unsigned long>(FIONREAD), static_cast<unsigned long>(SIOCINQ)}) {
    int n = -1;
    EXPECT_EQ(::ioctl(pair.far, request, &n), 0);
    EXPECT_EQ(n, 0);
    put(pair.near, "abc");
    put(pair.near, "de");
    EXPECT_TRUE(comes_true([&] { return ::ioctl(pair.far, request, &n) == 0 && n == 5; })) << n;
    EXPECT_EQ(get(pair.far, 4), "abcd");
    EXPECT_EQ(::ioctl(pair.far, request, &n), 0);
    EXPECT_EQ(n, 1);
    EXPECT_EQ(get(pair.far, 1), "e");
  }
}

TEST(Descriptors, TellThatAllThatWasSentHasArrived) {
  Pair pair;
  put(pair.near, "abc");
  EXPECT_TRUE(comes_true([&] {
    int n = -1;
    return ::ioctl(pair.near, SIOCOUTQ, &n) == 0 && n == 0;
  }));
}

TEST(Descriptors, TellWhatTcpHoldsOnceTheySendByItAgain) {
  Pair pair;
  ASSERT_EQ(set(pair.near, IPPROTO_TCP, TCP_USER_TIMEOUT, 60'000), 0);  // takes it back
  const std::string much(1 << 20, 'm');
  while (::send(pair.near, much.data(), much.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0) {
  }
  int sent = 0, unsent = 0;
  EXPECT_EQ(::ioctl(pair.near, SIOCOUTQ, &sent), 0);
  EXPECT_EQ(::ioctl(pair.near, SIOCOUTQNSD, &unsent), 0);
  EXPECT_GT(sent, 0);
  EXPECT_GT(unsent, 0);
}

TEST(Descriptors, CopiesAreTheSameConnectionUntilTheLastIsClosed) {
  using Copy = int (*)(int fd);
  const Copy kCopies[] = {
      [](int fd) { return ::dup(fd); },
      [](int fd) { return ::dup2(fd, 200); },
      [](int fd) { return ::dup3(fd, 201, O_CLOEXEC); },
      [](int fd) { return ::fcntl(fd, F_DUPFD, 202); },
      [](int fd) { return ::fcntl(fd, F_DUPFD_CLOEXEC, 203); },
  };
  Pair pair;
  std::vector<int> copies;
  for (const Copy copy : kCopies) copies.push_back(copy(pair.near));
  EXPECT_EQ(copies[1], 200);
  EXPECT_EQ(copies[2], 201);
  EXPECT_GE(copies[3], 202);
  EXPECT_NE(::fcntl(copies[4], F_GETFD) & FD_CLOEXEC, 0);
  pair.close_near();
  for (const int copy : copies) {
    EXPECT_TRUE(silent(pair.far));
    EXPECT_TRUE(by_pipe(copy));
    put(copy, "copy");
    EXPECT_EQ(get(pair.far, 4), "copy");
    put(pair.far, "back");
    EXPECT_EQ(get(copy, 4), "back");
    ::close(copy);
  }
  EXPECT_TRUE(ends(pair.far));
}

TEST(Descriptors, ADuplicateOntoASocketClosesThat) {
  for (int by_dup3 = 0; by_dup3 < 2; ++by_dup3) {
    Pair pair, other;
    const int replaced = pair.near;
    ASSERT_EQ(by_dup3 != 0 ? ::dup3(other.near, replaced, 0) : ::dup2(other.near, replaced),
              replaced);
    EXPECT_TRUE(ends(pair.far));
    put(replaced, "x");
    EXPECT_EQ(get(other.far, 1), "x");
    EXPECT_EQ(::dup2(-1, replaced), -1);
    EXPECT_EQ(errno, EBADF);
    put(replaced, "y");
    EXPECT_EQ(get(other.far, 1), "y");
  }
}

TEST(Descriptors, ADuplicateThatFailsClosesNothing) {
  Pair pair;
  EXPECT_EQ(::dup3(0, pair.near, 0x1234567), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::dup2(-1, pair.near), -1);
  EXPECT_EQ(errno, EBADF);
  pair.talk();
  EXPECT_TRUE(by_pipe(pair.near));
}

TEST(Descriptors, DoNotWaitHoweverThatIsSaid) {
  using Say = void (*)(int fd, bool waits);
  const std::pair<const char*, Say> kRoutes[] = {
      {"fcntl", [](int fd, bool waits) { ::fcntl(fd, F_SETFL, waits ? 0 : O_NONBLOCK); }},
      {"ioctl",
       [](int fd, bool waits) {
         int on = waits ? 0 : 1;
         ::ioctl(fd, FIONBIO, &on);
       }},
      {"fcntl by number",
       [](int fd, bool waits) { ::syscall(SYS_fcntl, fd, F_SETFL, waits ? 0 : O_NONBLOCK); }},
      {"of a copy",
       [](int fd, bool waits) {
         const int copy = ::dup(fd);
         ::fcntl(copy, F_SETFL, waits ? 0 : O_NONBLOCK);
         ::close(copy);
       }},
      {"by a child",
       [](int fd, bool waits) {
         EXPECT_EQ(result_of(child([&] { return ::fcntl(fd, F_SETFL, waits ? 0 : O_NONBLOCK); })),
                   0);
       }},
  };
  for (const auto& [name, say] : kRoutes) {
    SCOPED_TRACE(name);
    Pair pair;
    char byte;
    say(pair.far, false);
    EXPECT_EQ(::read(pair.far, &byte, 1), -1);
    EXPECT_EQ(errno, EAGAIN);
    EXPECT_NE(::fcntl(pair.far, F_GETFL) & O_NONBLOCK, 0);
    say(pair.far, true);
    ssize_t n = 0;
    Thread reader([&, far = pair.far] { n = ::read(far, &byte, 1); });
    EXPECT_TRUE(reader.falls_asleep());
    put(pair.near, "x");
    reader.join();
    EXPECT_EQ(n, 1);
  }
}

std::atomic<int> signals{0};

TEST(Descriptors, SignalsTellOfWhatComesWhenThatIsAsked) {
  struct sigaction counts {
  }, before{};
  counts.sa_handler = [](int) { signals.fetch_add(1); };
  counts.sa_flags = SA_RESTART;
  ::sigaction(SIGIO, &counts, &before);
  for (int by_ioctl = 0; by_ioctl < 2; ++by_ioctl) {
    Pair pair;
    put(pair.near, "before");
    ASSERT_EQ(::fcntl(pair.far, F_SETOWN, ::getpid()), 0);
    int on = 1;
    ASSERT_EQ(
        by_ioctl != 0 ? ::ioctl(pair.far, FIOASYNC, &on) : ::fcntl(pair.far, F_SETFL, O_ASYNC), 0);
    EXPECT_EQ(get(pair.far, 6), "before");
    for (int i = 0; i < 5; ++i) {
      signals = 0;
      put(pair.near, "x");
      EXPECT_TRUE(comes_true([] { return signals.load() > 0; })) << "round " << i;
      EXPECT_EQ(get(pair.far, 1), "x");
    }
    EXPECT_TRUE(by_tcp(pair.far));
  }
  ::sigaction(SIGIO, &before, nullptr);
}

TEST(Descriptors, CloseRangeEndsConnections) {
  for (const int way : {0, 1, 2, 3}) {
    Peer peer([way](int fd) {
      sigset_t told;
      ::sigemptyset(&told);
      ::sigaddset(&told, SIGUSR1);
      ::sigprocmask(SIG_BLOCK, &told, nullptr);
      if (way == 0) ::close_range(static_cast<unsigned>(fd), static_cast<unsigned>(fd), 0);
      if (way == 1) ::close_range(3, ~0u, 0);
      if (way == 2) ::closefrom(3);
      if (way == 3) ::closefrom(-1);  // as of 0
      // Until the test has seen the end: it is not that of the process.
      const timespec most{10, 0};
      return ::sigtimedwait(&told, nullptr, &most) == SIGUSR1 ? 0 : 1;
    });
    EXPECT_TRUE(ends(peer.fd)) << way;
    ::kill(peer.pid, SIGUSR1);
  }
}

TEST(Descriptors, CloseRangeThatFailsClosesNothing) {
  Pair pair;
  const auto fd = static_cast<unsigned>(pair.far);
  constexpr int kNoFlag = 1 << 20;
  EXPECT_EQ(::close_range(fd, fd, kNoFlag), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::close_range(fd + 1, fd, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  pair.talk();
  EXPECT_TRUE(by_pipe(pair.near));
}

int open_descriptors() {
  int n = 0;
  for (int fd = 0; fd < 1024; ++fd) n += ::fcntl(fd, F_GETFD) >= 0;
  return n;
}

// In a child, as its limit is lower from then on.
TEST(Descriptors, OfALimitedNumberTheProgramGetsAllAndItsConnectionsGoOn) {
  EXPECT_EQ(result_of(child([] {
              constexpr int kLimit = 256;
              const rlimit limit{kLimit, kLimit};
              if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
              const int before = open_descriptors();
              const int listening = listener();
              const std::uint16_t port = port_of(listening);
              std::vector<std::unique_ptr<Pair>> pairs;
              const int expected = (kLimit - before - 1) / 2;
              for (int i = 0; i < expected; ++i) {
                const int near = connect_to(port);
                if (near < 0) return 2;
                const int far = ::accept(listening, nullptr, nullptr);
                if (far < 0) return 3;
                pairs.push_back(std::make_unique<Pair>(near, far));
                pairs.back()->talk();
              }
              for (const auto& pair : pairs) pair->talk();
              const int rest = kLimit - before - 1 - 2 * expected;
              for (int i = 0; i < rest; ++i) {
                if (::open("/dev/null", O_RDONLY) < 0) return 4;
              }
              if (::open("/dev/null", O_RDONLY) >= 0 || errno != EMFILE) return 5;
              pairs.erase(pairs.begin(), pairs.begin() + expected / 2);
              for (int i = 0; i < expected / 2 * 2; ++i) {
                if (::open("/dev/null", O_RDONLY) < 0) return 6;
              }
              for (const auto& pair : pairs) pair->talk();
              return ::testing::Test::HasFailure() ? 7 : 0;
            })),
            0);
}

// The kernel's table is as long as the highest number. In a child, as a table never gets shorter.
TEST(Descriptors, OfAHighLimitHaveAShortTable) {
  constexpr int kRefused = 77;
  const int result = result_of(child([] {
    const rlimit limit{1u << 20, 1u << 20};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return kRefused;
    Pair pair;
    std::ifstream status("/proc/self/status");
    int size = 0;
    for (std::string word; status >> word && word != "FDSize:";) {
    }
    status >> size;
    if (size <= 0 || size > 65'536) return 2;
    return ::testing::Test::HasFailure() ? 3 : 0;
  }));
  if (result == kRefused) GTEST_SKIP() << "this user may not have a million descriptors";
  EXPECT_EQ(result, 0);
}

TEST(Descriptors, WithANumberThatTheLibraryUsesAreTheProgramsOnce) {
  EXPECT_EQ(result_of(child([] {
              constexpr int kLimit = 256;
              const rlimit limit{kLimit, kLimit};
              if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
              Pair taken, closed, kept;
              const std::vector<int> numbers = pipes();
              struct stat wanted {
              }, found{};
              ::stat("/dev/null", &wanted);
              const int null = ::open("/dev/null", O_RDONLY);
              for (const int number : numbers) {
                if (::dup2(null, number) != number) return 2;
              }
              taken.talk();
              taken.close_near();
              taken.close_far();
              for (const int number : numbers) {
                if (::fstat(number, &found) != 0 || found.st_rdev != wanted.st_rdev) return 3;
              }
              Pair other;
              for (const int number : pipes()) ::close(number);
              while (::open("/dev/null", O_RDONLY) >= 0) {
              }
              for (Pair* pair : {&closed, &kept, &other}) pair->talk();
              const int before = open_descriptors();
              closed.close_near();
              closed.close_far();
              if (open_descriptors() != before - 2) return 4;
              kept.talk();
              return ::testing::Test::HasFailure() ? 5 : 0;
            })),
            0);
}

TEST(Descriptors, WhatIsNotClosedGoesOnByTcpWithoutTheLibrarysOwn) {
  Peer peer([](int fd) {
    if (::dup2(fd, 3) != 3) return 1;
    if (fd != 3) ::close(fd);
    ::closefrom(4);
    if (const int code = echo(3); code != 0) return code;
    return ::close_range(0, 2, CLOSE_RANGE_CLOEXEC);
  });
  ping(peer.fd, 50);
  EXPECT_TRUE(by_tcp(peer.fd));
}

}  // namespace
}  // namespace clan::test
