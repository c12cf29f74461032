// Programs that are executed with connections.
#include <linux/capability.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/prctl.h>

#include <cstdio>
#include <functional>

#include "helpers.h"

namespace clan::test {
namespace {

TEST(Exec, OfAProgramThatLoadsTheLibraryGoesOnByTcp) {
  Peer peer([](int fd) {
    ::setenv(kEchoOn, std::to_string(fd).c_str(), 1);
    ::execl("/proc/self/exe", "echo", nullptr);
    return 1;
  });
  put(peer.fd, "under way");  // may still lie in the pipe
  EXPECT_EQ(get(peer.fd, 9), "under way");
  ping(peer.fd, 100);
  EXPECT_TRUE(by_tcp(peer.fd));
}

TEST(Exec, OfAChildLeavesItsParentsConnectionInThePipe) {
  Pair pair;
  for (const int fd : {pair.near, pair.far}) ASSERT_EQ(::fcntl(fd, F_SETFD, FD_CLOEXEC), 0);
  EXPECT_EQ(result_of(child([] { return ::execl("/bin/true", "true", nullptr); })), 0);
  pair.talk();
  EXPECT_TRUE(by_pipe(pair.near));
}

TEST(Exec, WithADuplicateThatItClosesItGoesOn) {
  Peer peer([](int fd) {
    const int copy = ::dup(fd);
    ::setenv(kEchoOn, std::to_string(fd).c_str(), 1);
    ::setenv(kClose, std::to_string(copy).c_str(), 1);
    ::execl("/proc/self/exe", "echo", nullptr);
    return 1;
  });
  ping(peer.fd, 50);
  ::usleep(20'000);
  ping(peer.fd, 50);
  EXPECT_TRUE(by_tcp(peer.fd));
}

TEST(Exec, WithAnEpollSetThatStaysOpenItsSocketsGoOnByTcp) {
  for (const bool loads : {true, false}) {
    for (const bool edges : {false, true}) {
      SCOPED_TRACE(std::string(loads ? "with" : "without") + " the library" +
                   (edges ? ", edges" : ""));
      Peer peer([&](int fd) {
        const int set = ::epoll_create1(0);
        epoll_event event{};
        event.events = EPOLLIN | (edges ? std::uint32_t{EPOLLET} : 0);
        event.data.u64 = kDataInSet;
        if (::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0) return 1;
        ::setenv(kWaitIn, std::to_string(set).c_str(), 1);
        ::setenv(kEchoOn, std::to_string(fd).c_str(), 1);
        char name[] = "echo";
        char* arguments[] = {name, nullptr};
        ::execve("/proc/self/exe", arguments, loads ? environ : environment_without_library());
        return 1;
      });
      for (int i = 0; i < 3; ++i) {
        ping(peer.fd, 20);
        ::usleep(20'000);  // it sleeps
      }
      EXPECT_TRUE(by_tcp(peer.fd));
      peer.close();
    }
  }
}

TEST(Exec, WithTheSocketAsStandardStreamsItGoesOnByTcp) {
  Peer peer([](int fd) {
    onto_standard(fd);
    ::execl("/bin/cat", "cat", nullptr);
    return 1;
  });
  ping(peer.fd, 100);
  EXPECT_TRUE(by_tcp(peer.fd));
}

TEST(Exec, OfAProgramThatReadsByStreamsGoesOn) {
  Peer peer([](int fd) {
    onto_standard(fd);
    ::execlp("sed", "sed", "-u", "s/^/got /", nullptr);
    return 1;
  });
  for (int i = 0; i < 50; ++i) {
    put(peer.fd, "line " + std::to_string(1000 + i) + "\n");
    ASSERT_EQ(get(peer.fd, 14), "got line " + std::to_string(1000 + i) + "\n");
  }
}

TEST(Exec, OfAProgramWithoutTheLibraryGoesOnByTcp) {
  Peer peer([](int fd) {
    onto_standard(fd);
    char name[] = "cat";
    char* const arguments[] = {name, nullptr};
    ::execve("/bin/cat", arguments, environment_without_library());
    return 1;
  });
  put(peer.fd, "under way");  // may still lie in the pipe
  EXPECT_EQ(get(peer.fd, 9), "under way");
  ping(peer.fd, 100);
  EXPECT_TRUE(by_tcp(peer.fd));
}

/// Takes all from this process that would let it do the other end's part in going back to TCP.
void give_up_privileges() {
  struct {
    std::uint32_t version = _LINUX_CAPABILITY_VERSION_3;
    int pid = 0;
  } head;
  std::uint32_t none[6] = {};
  ::syscall(SYS_capset, &head, none);
}

TEST(Exec, WhatHasNotBeenReadComesThoughItsSenderEnds) {
  enum class How { kExit, kClosed, kExec, kForked };
  for (const How how : {How::kExit, How::kClosed, How::kExec, How::kForked}) {
    int sent[2], counted[2];
    ASSERT_EQ(::pipe(sent) | ::pipe(counted), 0);
    Peer peer([&](int fd) {
      ::prctl(PR_SET_DUMPABLE, 0);
      EXPECT_EQ(set(fd, SOL_SOCKET, SO_SNDBUF, 16384), 0);
      std::string block(10'000, 'x');
      std::uint64_t bytes = 0;
      for (ssize_t n; (n = ::send(fd, block.data(), block.size(), MSG_DONTWAIT)) > 0;)
        bytes += static_cast<std::uint64_t>(n);
      (void)!::write(sent[1], &bytes, sizeof bytes);
      for (int i = 0; i < 500 && preloaded() && !by_tcp(fd); ++i) {
        pollfd p{fd, POLLIN, 0};
        ::poll(&p, 1, 10);
      }
      if (how == How::kClosed) ::close(fd);
      if (how == How::kForked) {
        const pid_t pid = child([&] {
          ::send(fd, "last", 4, 0);
          return 0;
        });
        ::usleep(100'000);
        return result_of(pid);
      }
      if (how == How::kExec) ::execl("/bin/true", "true", nullptr);
      return 0;
    });
    std::uint64_t bytes = 0;
    ASSERT_EQ(::read(sent[0], &bytes, sizeof bytes), static_cast<ssize_t>(sizeof bytes));
    const pid_t counter = child([&] {
      give_up_privileges();
      ::dup2(peer.fd, STDIN_FILENO);
      ::dup2(counted[1], STDOUT_FILENO);
      ::unsetenv("LD_PRELOAD");
      ::execl("/bin/sh", "sh", "-c", "sleep 0.3; wc -c", nullptr);
      return 1;
    });
    peer.close();
    ::close(counted[1]);
    char text[32] = {};
    EXPECT_GT(::read(counted[0], text, sizeof text - 1), 0);
    EXPECT_EQ(std::strtoull(text, nullptr, 10), bytes + (how == How::kForked ? 4 : 0))
        << static_cast<int>(how);
    EXPECT_EQ(result_of(counter), 0);
    for (const int fd : {sent[0], sent[1], counted[0]}) ::close(fd);
  }
}

// By this process's rights it cannot be had, and it makes no call. There is nothing that only it
// could send, so nobody waits for it.
TEST(Exec, DoesNotWaitForASilentPeerThatCannotBeReached) {
  int ready[2], runs[2], go[2];
  ASSERT_EQ(::pipe(ready) | ::pipe(go), 0);
  Peer peer([&](int fd) {
    ::prctl(PR_SET_DUMPABLE, 0);
    char byte = 'x';
    if (::write(ready[1], &byte, 1) != 1 || ::read(go[0], &byte, 1) != 1) return 1;
    ping(fd, 100);
    return testing::Test::HasFailure() || !by_tcp(fd) ? 2 : 0;
  });
  ASSERT_EQ(::pipe2(runs, O_CLOEXEC), 0);
  char byte = 'x';
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const pid_t program = child([&] {
    give_up_privileges();
    onto_standard(peer.fd);
    ::unsetenv("LD_PRELOAD");
    ::execl("/bin/cat", "cat", nullptr);
    return 1;
  });
  peer.close();
  ::close(runs[1]);
  EXPECT_NE(poll_one(runs[0], POLLIN, 5000), 0) << "ten seconds of a wait for its next call";
  EXPECT_EQ(::read(runs[0], &byte, 1), 0);
  EXPECT_EQ(::write(go[1], &byte, 1), 1);
  EXPECT_EQ(peer.result(), 0);
  EXPECT_EQ(result_of(program), 0);
  for (const int fd : {ready[0], ready[1], runs[0], go[0], go[1]}) ::close(fd);
}

// The other end has come into the pipe and sent nothing there: there is
// nothing to wait for.
TEST(Exec, AfterAResetByWhoOnlyReadDoesNotWait) {
  constexpr int kMessages = 18;  // few enough that it has no room to ring for
  const int listening = listener();
  const pid_t reader = child([&] {
    const int fd = ::accept(listening, nullptr, nullptr);
    for (int i = 0; i < kMessages; ++i) {
      if (get(fd, 1) != "x") return 1;
    }
    ::usleep(50'000);
    const linger at_once{1, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    return ::close(fd);
  });
  const int fd = connect_to(port_of(listening));
  ::close(listening);
  for (int i = 0; i < kMessages; ++i) {
    put(fd, "x");
    ::usleep(1000);
  }
  EXPECT_TRUE(!preloaded() || (way_of(fd).sends_by_pipe && !way_of(fd).receives_by_pipe));
  EXPECT_EQ(result_of(reader), 0);
  char byte;
  EXPECT_EQ(::read(fd, &byte, 1), -1);
  EXPECT_EQ(errno, ECONNRESET);
  ::fcntl(fd, F_SETFD, 0);
  const pid_t other = child(
      [] {
        char name[] = "true";
        char* const arguments[] = {name, nullptr};
        return ::execve("/bin/true", arguments, environment_without_library());
      },
      5);
  EXPECT_EQ(result_of(other), 0);
  ::close(fd);
}

TEST(Exec, ClosesWhatIsToBeClosed) {
  int hold[2];
  ASSERT_EQ(::pipe(hold), 0);
  Peer peer([&](int fd) {
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    ::dup2(hold[0], STDIN_FILENO);
    ::close(hold[0]);
    ::close(hold[1]);
    ::execl("/bin/cat", "cat", nullptr);
    return 1;
  });
  EXPECT_TRUE(ends(peer.fd));
  EXPECT_EQ(::waitpid(peer.pid, nullptr, WNOHANG), 0) << "the program runs";
  ::close(hold[0]);
  ::close(hold[1]);
}

TEST(Exec, ThatFailsChangesNothing) {
  Peer peer([](int fd) {
    ::execl("/no/such/program", "program", nullptr);
    return errno == ENOENT ? echo(fd) : 1;
  });
  ping(peer.fd, 50);
}

TEST(Exec, OfAPathThatIsNullFailsAsTheKernelSays) {
  Pair pair;
  char* arguments[] = {nullptr};
  const auto call = &::execveat;  // whose declaration allows no null
  errno = 0;
  EXPECT_EQ(call(AT_FDCWD, nullptr, arguments, environ, 0), -1);
  EXPECT_EQ(errno, EFAULT);
}

TEST(Exec, AfterVforkTheChildHasTheSocketAndTheParentKeepsIt) {
  Peer peer([](int fd) {
    const pid_t pid = ::vfork();
    if (pid == 0) {
      ::dup2(fd, STDOUT_FILENO);
      ::close(fd);
      ::execl("/bin/echo", "echo", "hello", nullptr);
      ::_exit(1);
    }
    if (result_of(pid) != 0) return 1;
    return echo(fd);
  });
  EXPECT_EQ(get(peer.fd, 6), "hello\n");
  ping(peer.fd, 50);
}

TEST(Exec, AfterVforkTheProgramHoldsTheConnectionWhenTheParentCloses) {
  int closed[2];
  ASSERT_EQ(::pipe(closed), 0);
  Peer peer([&](int fd) {
    ::setenv(kEchoOn, std::to_string(fd).c_str(), 1);
    const pid_t pid = ::vfork();
    if (pid == 0) {
      ::execl("/proc/self/exe", "echo", nullptr);
      ::_exit(1);
    }
    ::close(fd);
    if (::write(closed[1], "x", 1) != 1) return 1;
    return result_of(pid);
  });
  char byte;
  ASSERT_EQ(::read(closed[0], &byte, 1), 1);
  EXPECT_EQ(poll_one(peer.fd, POLLRDHUP, 100), 0) << "the peer is told of an end";
  ping(peer.fd, 100);
  EXPECT_TRUE(by_tcp(peer.fd));
  for (const int fd : closed) ::close(fd);
}

TEST(Exec, AfterVforkThatFailsItGoesOn) {
  Peer peer([](int fd) {
    const int copy = ::dup(fd);
    const pid_t pid = ::vfork();
    if (pid == 0) {
      ::execl("/etc/hostname", "program", nullptr);  // may not be executed
      ::execl("/proc/self/exe/none", "program", nullptr);
      ::_exit(7);
    }
    if (result_of(pid) != 7) return 1;
    ::close(copy);
    return echo(fd);
  });
  ping(peer.fd, 50);
}

TEST(Spawn, TheProgramHoldsTheConnectionWhenTheParentCloses) {
  Peer peer([](int fd) {
    ::setenv(kEchoOn, std::to_string(fd).c_str(), 1);
    char name[] = "echo";
    char* const arguments[] = {name, nullptr};
    pid_t pid = -1;
    if (::posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments, environ) != 0) return 1;
    ::close(fd);
    return result_of(pid);
  });
  ping(peer.fd, 100);
}

TEST(Spawn, GivesTheProgramTheSocket) {
  Peer peer([](int fd) {
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, fd, STDOUT_FILENO);
    char name[] = "echo", text[] = "hello";
    char* const arguments[] = {name, text, nullptr};
    pid_t pid = -1;
    for (int searched = 0; searched < 2; ++searched) {
      const int rc = searched != 0
                         ? ::posix_spawnp(&pid, "echo", &actions, nullptr, arguments, environ)
                         : ::posix_spawn(&pid, "/bin/echo", &actions, nullptr, arguments, environ);
      if (rc != 0 || result_of(pid) != 0) return 1;
    }
    ::posix_spawn_file_actions_destroy(&actions);
    return echo(fd);
  });
  EXPECT_EQ(get(peer.fd, 12), "hello\nhello\n");
  ping(peer.fd, 50);
  EXPECT_TRUE(by_tcp(peer.fd));
}

/// What `run` takes of a stack.
template <typename F>
std::size_t stack_of(F& run) {
  constexpr std::size_t kBytes = 1 << 18;
  constexpr char kUntouched = 0x5a;
  std::vector<char> stack(kBytes + 4096, kUntouched);
  auto* bottom = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(stack.data()) + 4095) &
                                         ~std::uintptr_t{4095});
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstack(&attributes, bottom, kBytes);
  pthread_t thread;
  EXPECT_EQ(::pthread_create(
                &thread, &attributes,
                [](void* what) -> void* {
                  (*static_cast<F*>(what))();
                  return nullptr;
                },
                &run),
            0);
  ::pthread_join(thread, nullptr);
  ::pthread_attr_destroy(&attributes);
  const char* touched = bottom;
  while (touched < bottom + kBytes && *touched == kUntouched) ++touched;
  return static_cast<std::size_t>(bottom + kBytes - touched);
}

// For a program that is spawned: with bytes of TCP and of the pipe that nobody has read, which the
// sender's end has to be given back and this end to send again.
TEST(Spawn, GoesBackOnASmallStack) {
  constexpr std::size_t kMost = 9000;  // of the 16 KB that a thread may have
  auto spawns = [] {
    char name[] = "true";
    char* const arguments[] = {name, nullptr};
    pid_t pid = -1;
    if (::posix_spawn(&pid, "/bin/true", nullptr, nullptr, arguments, environ) == 0)
      ::waitpid(pid, nullptr, 0);
  };
  const std::size_t without = stack_of(spawns);
  Pair pair;
  ::fcntl(pair.far, F_SETFD, 0);
  put(pair.near, "unread");
  const std::size_t with = stack_of(spawns);
  EXPECT_LT(with, without + kMost);
  EXPECT_TRUE(by_tcp(pair.far));
  EXPECT_EQ(get(pair.far, 6), "unread");
}

TEST(Spawn, ShellCommandsHaveTheSocketToo) {
  Peer peer([](int fd) {
    const std::string command = "echo hello >&" + std::to_string(fd);
    if (::system(command.c_str()) != 0) return 1;
    FILE* out = ::popen(("cat >&" + std::to_string(fd)).c_str(), "w");
    if (out == nullptr || std::fputs("popen\n", out) < 0 || ::pclose(out) != 0) return 2;
    return echo(fd);
  });
  EXPECT_EQ(get(peer.fd, 12), "hello\npopen\n");
  ping(peer.fd, 50);
}

}  // namespace
}  // namespace clan::test
