// Interposed calls by names that few programs use: second names of the C library (`__read`), those
// with 64 in them, and what ends in another call. Each does on a connection that has moved what its
// plain name does.
#include <aio.h>
#include <dlfcn.h>
#include <sched.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <functional>

#include "helpers.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // sigset(), siginterrupt()

extern "C" {
ssize_t __read(int fd, void* buffer, std::size_t n);
ssize_t __write(int fd, const void* buffer, std::size_t n);
ssize_t __recv(int fd, void* buffer, std::size_t n, int flags);
ssize_t __send(int fd, const void* buffer, std::size_t n, int flags);
int __connect(int fd, const sockaddr* address, socklen_t size);
int __close(int fd);
int __dup2(int fd, int to) noexcept;
int __pipe(int ends[2]) noexcept;
int __open(const char* path, int flags, ...);
int __open64(const char* path, int flags, ...);
int __fcntl(int fd, int command, ...);
int __poll(pollfd* fds, nfds_t count, int timeout);
int __select(int n, fd_set* in, fd_set* out, fd_set* bad, timeval* timeout);
pid_t __fork() noexcept;
int __clone(int (*run)(void*), void* stack, int flags, void* argument, ...) noexcept;
int __sigaction(int number, const struct sigaction* action, struct sigaction* old) noexcept;
sighandler_t bsd_signal(int number, sighandler_t handler) noexcept;
sighandler_t sysv_signal(int number, sighandler_t handler) noexcept;
int __dprintf_chk(int fd, int flag, const char* format, ...);
int __vdprintf_chk(int fd, int flag, const char* format, va_list list);
}

namespace clan::test {
namespace {

TEST(SecondNames, ReadAndWriteWhatThePipeCarries) {
  Pair pair;
  char in[8] = {};
  EXPECT_EQ(__write(pair.near, "one", 3), 3);
  EXPECT_EQ(__read(pair.far, in, sizeof in), 3);
  EXPECT_STREQ(in, "one");
  EXPECT_EQ(__send(pair.far, "four", 4, MSG_NOSIGNAL), 4);
  EXPECT_EQ(__recv(pair.near, in, sizeof in, 0), 4);
  EXPECT_STREQ(in, "four");
  pair.expect_carried(3, 4);
}

TEST(SecondNames, OpenAStreamAnew) {
  Pair pair;
  FILE* const stream = ::freopen64("/dev/null", "r+", ::fdopen(std::exchange(pair.far, -1), "r+"));
  ASSERT_NE(stream, nullptr);
  EXPECT_EQ(get(pair.near, 1), "") << "the end";
  EXPECT_EQ(std::fclose(stream), 0);
}

TEST(SecondNames, OfAsynchronousCallsTakeAConnectionBack) {
  auto ends = [](aiocb64& one) {
    const aiocb64* const list[] = {&one};
    while (::aio_error64(&one) == EINPROGRESS) ::aio_suspend64(list, 1, nullptr);
    return ::aio_return64(&one);
  };
  char in[4] = {}, out[] = "out";
  for (const int by_list : {0, 1}) {
    Pair pair;
    put(pair.near, "in!");
    aiocb64 reads{}, writes{};
    for (aiocb64* one : {&reads, &writes}) one->aio_fildes = pair.far, one->aio_nbytes = 3;
    reads.aio_buf = in;
    reads.aio_lio_opcode = LIO_READ;
    writes.aio_buf = out;
    writes.aio_lio_opcode = LIO_WRITE;
    aiocb64* const both[] = {&reads, &writes};
    if (by_list == 0) {
      ASSERT_EQ(::aio_read64(&reads), 0);
      ASSERT_EQ(::aio_write64(&writes), 0);
    } else {
      ASSERT_EQ(::lio_listio64(LIO_NOWAIT, both, 2, nullptr), 0);
    }
    EXPECT_EQ(ends(reads), 3);
    EXPECT_EQ(ends(writes), 3);
    EXPECT_STREQ(in, "in!");
    EXPECT_EQ(get(pair.near, 3), "out");
    EXPECT_TRUE(by_tcp(pair.near));
  }
}

TEST(SecondNames, ReadAndWriteAtNoOffset) {
  Pair pair;
  char out[] = "five", in[8] = {};
  const iovec from{out, 4}, to{in, sizeof in};
  EXPECT_EQ(::pwritev64v2(pair.near, &from, 1, -1, 0), 4);
  EXPECT_EQ(::preadv64v2(pair.far, &to, 1, -1, 0), 4);
  EXPECT_STREQ(in, "five");
  pair.expect_carried(4, 0);
}

TEST(SecondNames, SendAFile) {
  Pair pair;
  const int file = static_cast<int>(::memfd_create("test", MFD_CLOEXEC));
  (void)!::pwrite(file, "0123456789", 10, 0);
  off64_t at = 2;
  EXPECT_EQ(::sendfile64(pair.near, file, &at, 5), 5);
  EXPECT_EQ(at, 7);
  EXPECT_EQ(get(pair.far, 5), "23456");
  pair.expect_carried(5, 0);
  ::close(file);
}

int print_with_list(int fd, const char* format, ...) {
  va_list list;
  va_start(list, format);
  const int n = ::vdprintf(fd, format, list);
  va_end(list);
  return n;
}
int print_checked_with_list(int fd, const char* format, ...) {
  va_list list;
  va_start(list, format);
  const int n = __vdprintf_chk(fd, 1, format, list);
  va_end(list);
  return n;
}

TEST(SecondNames, PrintToADescriptor) {
  Pair pair;
  EXPECT_EQ(print_with_list(pair.near, "%d+%s", 12, "ab"), 5);
  EXPECT_EQ(get(pair.far, 5), "12+ab");
  EXPECT_EQ(print_checked_with_list(pair.near, "%d-%s", 34, "cd"), 5);
  EXPECT_EQ(get(pair.far, 5), "34-cd");
  EXPECT_EQ(__dprintf_chk(pair.near, 1, "%c", '!'), 1);
  EXPECT_EQ(get(pair.far, 1), "!");
  pair.expect_carried(11, 0);
}

TEST(SecondNames, WaitForWhatThePipeCarries) {
  Pair pair;
  pollfd p{pair.far, POLLIN, 0};
  EXPECT_EQ(__poll(&p, 1, 0), 0);
  put(pair.near, "x");
  EXPECT_EQ(__poll(&p, 1, 2000), 1);
  EXPECT_EQ(p.revents, POLLIN);
  fd_set in;
  FD_ZERO(&in);
  FD_SET(pair.far, &in);
  timeval two_seconds{2, 0};
  EXPECT_EQ(__select(pair.far + 1, &in, nullptr, nullptr, &two_seconds), 1);
  EXPECT_TRUE(FD_ISSET(pair.far, &in));
  EXPECT_EQ(get(pair.far, 1), "x");
}

TEST(SecondNames, ConnectDuplicateAndClose) {
  const int listening = listener();
  const sockaddr_in address = loopback(port_of(listening));
  const int connected = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(__connect(connected, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  Pair pair(connected, ::accept(listening, nullptr, nullptr));
  ::close(listening);
  pair.move();
  const int copy = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(__dup2(pair.near, copy), copy);
  EXPECT_EQ(__close(std::exchange(pair.near, copy)), 0);
  put(pair.near, "still");
  EXPECT_EQ(get(pair.far, 5), "still");
  EXPECT_TRUE(by_pipe(pair.near));
  EXPECT_EQ(__close(std::exchange(pair.near, -1)), 0);
  EXPECT_TRUE(ends(pair.far));
}

TEST(SecondNames, SetTheFlagsOfASocket) {
  Pair pair;
  char byte;
  for (auto* const control : {&::fcntl64, &__fcntl}) {
    const int flags = control(pair.near, F_GETFL);
    EXPECT_EQ(flags & O_NONBLOCK, 0);
    EXPECT_EQ(control(pair.near, F_SETFL, flags | O_NONBLOCK), 0);
    EXPECT_EQ(::read(pair.near, &byte, 1), -1);
    EXPECT_EQ(errno, EAGAIN);
    EXPECT_EQ(control(pair.near, F_SETFL, flags), 0);
  }
}

// A descriptor of the library's may lie where a program opens its next one: it makes room.
TEST(SecondNames, OpenWhereTheProgramExpectsIt) {
  Pair pair;
  const std::vector<std::function<int()>> ways = {
      [] { return ::open64("/dev/null", O_RDONLY | O_CLOEXEC); },
      [] { return ::openat(AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC); },
      [] { return ::openat64(AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC); },
      [] { return __open("/dev/null", O_RDONLY | O_CLOEXEC); },
      [] { return __open64("/dev/null", O_RDONLY | O_CLOEXEC); },
  };
  for (const auto& open : ways) {
    const int expected = ::dup(0);
    ::close(expected);
    const int fd = open();
    EXPECT_EQ(fd, expected);
    ::close(fd);
  }
  FILE* const file = ::fopen64("/dev/null", "re");
  ASSERT_NE(file, nullptr);
  std::fclose(file);
  int pipe[2];
  ASSERT_EQ(__pipe(pipe), 0);
  put(pair.near, "ok");
  EXPECT_EQ(get(pair.far, 2), "ok");
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(SecondNames, LimitDescriptors) {
  rlimit64 limit{}, now{};
  ASSERT_EQ(::prlimit64(0, RLIMIT_NOFILE, nullptr, &limit), 0);
  rlimit64 lower = limit;
  lower.rlim_cur = 300;
  const pid_t process = child([&] {
    Pair pair;
    if (::setrlimit64(RLIMIT_NOFILE, &lower) != 0) return 1;
    if (::prlimit64(0, RLIMIT_NOFILE, nullptr, &now) != 0 || now.rlim_cur != 300) return 2;
    int count = 0;
    while (::dup(0) >= 0) ++count;
    pair.talk();
    return count > 200 && !::testing::Test::HasFailure() ? 0 : 3;
  });
  EXPECT_EQ(result_of(process), 0);
}

TEST(SecondNames, ForkAndShareAConnection) {
  Pair pair;
  const auto talk = [&] {
    return put(pair.near, "from a child"), ::testing::Test::HasFailure() ? 1 : 0;
  };
  const pid_t forked = __fork();
  if (forked == 0) ::_exit(talk());
  EXPECT_EQ(get(pair.far, 12), "from a child");
  EXPECT_EQ(result_of(forked), 0);
  std::vector<char> stack(1 << 18);
  std::function<int()> run = talk;
  const int cloned = __clone(
      [](void* f) {
        ::_exit((*static_cast<std::function<int()>*>(f))());
        return 0;
      },
      stack.data() + stack.size() - 64, SIGCHLD, &run);
  EXPECT_EQ(get(pair.far, 12), "from a child");
  EXPECT_EQ(result_of(cloned), 0);
  pair.talk();
}

TEST(SecondNames, EndAProcess) {
  Peer peer([](int fd) {
    put(fd, "last");
    std::_Exit(7);
    return 0;
  });
  EXPECT_EQ(get(peer.fd, 4), "last");
  EXPECT_TRUE(ends(peer.fd));
  EXPECT_EQ(peer.result(), 7);
}

// The program executed anew echoes on the socket that the environment names.
void expect_echo_after(const std::function<void(const char* self)>& execute) {
  Peer peer([&](int fd) {
    ::setenv(kEchoOn, std::to_string(fd).c_str(), 1);
    const std::string self = std::filesystem::read_symlink("/proc/self/exe");
    execute(self.c_str());
    return 1;
  });
  ping(peer.fd, 50);
  EXPECT_TRUE(by_tcp(peer.fd));
}

TEST(SecondNames, ExecuteByEachOfThem) {
  static char name[] = "echo";
  static char* const arguments[] = {name, nullptr};
  expect_echo_after([](const char* self) { ::execv(self, arguments); });
  expect_echo_after([](const char* self) { ::execvp(self, arguments); });
  expect_echo_after([](const char* self) { ::execvpe(self, arguments, environ); });
  expect_echo_after([](const char* self) { ::execle(self, "echo", nullptr, environ); });
  expect_echo_after([](const char* self) { ::execveat(AT_FDCWD, self, arguments, environ, 0); });
  expect_echo_after(
      [](const char* self) { ::fexecve(::open(self, O_RDONLY | O_CLOEXEC), arguments, environ); });
}

std::atomic<int> handled{0};
void count(int) { ++handled; }

TEST(SecondNames, HandleSignalsDuringTransfers) {
  Pair pair;
  struct sigaction before {
  }, action{};
  ASSERT_EQ(__sigaction(SIGUSR1, nullptr, &before), 0);
  action.sa_handler = count;
  const std::vector<std::function<void()>> ways = {
      [&] { __sigaction(SIGUSR1, &action, nullptr); },
      [] { bsd_signal(SIGUSR1, count); },
      [] { ::ssignal(SIGUSR1, count); },
      [] { sysv_signal(SIGUSR1, count); },
      [] { ::__sysv_signal(SIGUSR1, count); },
      [] { ::sigset(SIGUSR1, count); },
  };
  for (const auto& install : ways) {
    const int was = handled;
    install();
    ::raise(SIGUSR1);
    EXPECT_EQ(handled, was + 1);
    pair.talk(1);
  }
  ::signal(SIGUSR1, count);
  for (const int interrupts : {1, 0}) {
    ASSERT_EQ(::siginterrupt(SIGUSR1, interrupts), 0);
    struct sigaction now {};
    ASSERT_EQ(::sigaction(SIGUSR1, nullptr, &now), 0);
    EXPECT_EQ((now.sa_flags & SA_RESTART) == 0, interrupts == 1);
  }
  __sigaction(SIGUSR1, &before, nullptr);
}

TEST(SecondNames, OpenAModuleInANamespaceOfItsOwn) {
  const pid_t process = child([] {  // of its own, since nothing moves there any more
    Pair pair;
    void* const module = ::dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr) return 1;
    pair.talk();
    return by_tcp(pair.near) && !::testing::Test::HasFailure() ? 0 : 2;
  });
  EXPECT_EQ(result_of(process), 0);
}

}  // namespace
}  // namespace clan::test
