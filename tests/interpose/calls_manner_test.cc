// How calls behave beside what they do: a thread that is cancelled at any instruction, errno of
// calls that succeed, more bytes than one call moves, what they take of a small stack.
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#include <csignal>

#include "connection.h"

namespace clan::test {
namespace {

const bool watched = Watchdog::start();

// --- cancelled at any instruction ----------------------------------------------------------------

struct Loop {
  const char* name;
  void (*run)(int fd, int set);
};
const Loop kLoops[] = {
    {"send",
     [](int fd, int) {
       char text[256] = {};
       while (::send(fd, text, sizeof text, MSG_NOSIGNAL) > 0) {
       }
     }},
    {"recv",
     [](int fd, int) {
       char text[256];
       while (::recv(fd, text, sizeof text, 0) > 0) {
       }
     }},
    {"readv and writev",
     [](int fd, int) {
       char text[256] = {};
       const iovec io{text, sizeof text};
       while (::writev(fd, &io, 1) > 0 && ::readv(fd, &io, 1) > 0) {
       }
     }},
    {"poll",
     [](int fd, int) {
       pollfd p{fd, POLLIN | POLLOUT, 0};
       while (::poll(&p, 1, 0) >= 0) {
       }
     }},
    {"epoll_wait",
     [](int fd, int set) {
       epoll_event event{.events = EPOLLIN | EPOLLOUT, .data = {.fd = fd}};
       while (::epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0 &&
              ::epoll_wait(set, &event, 1, 0) >= 0) {
       }
     }},
    {"dup and close",
     [](int fd, int) {
       for (int copy; (copy = ::dup(fd)) >= 0;) ::close(copy);
     }},
    {"getsockopt and ioctl",
     [](int fd, int) {
       int value = 0;
       tcp_info info{};
       socklen_t size = sizeof info;
       while (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
              ::ioctl(fd, FIONREAD, &value) == 0) {
       }
     }},
};

struct Cancelled {
  const Loop* loop;
  int fd, set;
};
void* cancelled(void* argument) {
  const auto* const what = static_cast<const Cancelled*>(argument);
  ::pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, nullptr);
  what->loop->run(what->fd, what->set);
  return nullptr;
}

// The other end takes all, and sends all the time.
void feed(int fd, const std::atomic<bool>& over) {
  char text[4096] = {};
  while (!over.load()) {
    (void)!::recv(fd, text, sizeof text, MSG_DONTWAIT);
    (void)!::send(fd, text, 100, MSG_DONTWAIT);
    ::usleep(10);
  }
}

// What is under way both ways is taken out: zeros.
void drain(const Pair& pair) {
  char text[4096];
  for (const int fd : {pair.near, pair.far}) {
    while (::recv(fd, text, sizeof text, MSG_DONTWAIT) > 0) {
    }
  }
  for (const auto& [from, to] : {std::pair{pair.near, pair.far}, std::pair{pair.far, pair.near}}) {
    put(from, "E");
    while (get(to, 1) == std::string(1, '\0')) {
    }
  }
}

TEST(CancelledAtOnce, AThreadLeavesNoLockTaken) {
  constexpr int kTimes = 60;
  for (const Loop& loop : kLoops) {
    SCOPED_TRACE(loop.name);
    Pair pair;
    std::atomic<bool> over{false};
    Thread feeder([&] { feed(pair.far, over); });
    const int set = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{.events = EPOLLIN, .data = {.fd = pair.near}};
    ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, pair.near, &event), 0);
    Cancelled what{&loop, pair.near, set};
    for (int i = 0; i < kTimes; ++i) {
      pthread_t thread;
      ASSERT_EQ(::pthread_create(&thread, nullptr, cancelled, &what), 0);
      ::usleep(static_cast<useconds_t>(50 + 10 * i));
      ASSERT_EQ(::pthread_cancel(thread), 0);
      void* result = nullptr;
      ASSERT_EQ(::pthread_join(thread, &result), 0);
      ASSERT_EQ(result, PTHREAD_CANCELED);
    }
    over = true;
    feeder.join();
    drain(pair);
    pair.talk();
    EXPECT_TRUE(by_pipe(pair.near));
    ::close(set);
  }
}

TEST(CancelledAtOnce, AThreadThatBlocksEndsAndOneThatComputesToo) {
  Pair pair;
  for (auto *const run : {+[](int fd, int) {
                            char byte;
                            (void)!::recv(fd, &byte, 1, 0);
                          },
                          +[](int, int) {
                            for (std::atomic<int> i = 0;; ++i) {
                            }
                          }}) {
    const Loop loop{"", run};
    Cancelled what{&loop, pair.near, -1};
    pthread_t thread;
    ASSERT_EQ(::pthread_create(&thread, nullptr, cancelled, &what), 0);
    ::usleep(2000);
    ASSERT_EQ(::pthread_cancel(thread), 0);
    void* result = nullptr;
    ASSERT_EQ(::pthread_join(thread, &result), 0);
    EXPECT_EQ(result, PTHREAD_CANCELED);
  }
  pair.talk();
}

TEST(CancelledAtOnce, OrLaterIsToldAsItWasSet) {
  int before = -1;
  ASSERT_EQ(::pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before), 0);
  EXPECT_EQ(before, PTHREAD_CANCEL_DEFERRED);
  Pair pair;
  EXPECT_EQ(::pthread_setcanceltype(77, nullptr), EINVAL);
  EXPECT_EQ(::pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &before), 0);
  EXPECT_EQ(before, PTHREAD_CANCEL_ASYNCHRONOUS);
  EXPECT_EQ(::pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &before), 0);
  EXPECT_EQ(before, PTHREAD_CANCEL_DEFERRED);
}

// --- errno ---------------------------------------------------------------------------------------

#define KEEPS(call)                      \
  do {                                   \
    errno = 12345;                       \
    const auto rc = (call);              \
    const int after = errno;             \
    ASSERT_GE(rc, 0) << strerror(after); \
    ASSERT_EQ(after, 12345) << #call;    \
  } while (false)

void expect_kept_by_bytes(const Pair& pair, int round) {
  SCOPED_TRACE("round " + std::to_string(round));
  char in[100], out[100] = {};
  iovec to{in, sizeof in}, from{out, sizeof out};
  msghdr received{}, sent{};
  received.msg_iov = &to, sent.msg_iov = &from;
  received.msg_iovlen = sent.msg_iovlen = 1;
  KEEPS(::write(pair.near, out, sizeof out));
  KEEPS(::recv(pair.far, in, sizeof in, MSG_WAITALL));
  KEEPS(::send(pair.far, out, sizeof out, MSG_NOSIGNAL));
  KEEPS(::read(pair.near, in, sizeof in));
  KEEPS(::sendmsg(pair.near, &sent, 0));
  KEEPS(::recvmsg(pair.far, &received, MSG_WAITALL));
  KEEPS(::writev(pair.far, &from, 1));
  KEEPS(::readv(pair.near, &to, 1));
  KEEPS(::sendto(pair.near, out, sizeof out, 0, nullptr, 0));
  KEEPS(::recvfrom(pair.far, in, sizeof in, 0, nullptr, nullptr));
}

TEST(Errno, IsKeptByBytesWhileAConnectionMovesAndBehindIt) {
  for (int turn = 0; turn < 5; ++turn) {
    Pair pair(false);
    const int yes = 1;
    for (const int fd : {pair.near, pair.far})
      ASSERT_EQ(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes), 0);
    for (int round = 0; round < 60; ++round) {
      expect_kept_by_bytes(pair, round);
      if (HasFatalFailure()) return;
    }
    EXPECT_TRUE(by_pipe(pair.near));
  }
}

TEST(Errno, IsKeptByCallsThatWaitWhileAConnectionMoves) {
  for (int turn = 0; turn < 10; ++turn) {
    const Echo echo;
    char message[32] = {};
    for (int i = 0; i < 100; ++i) {
      KEEPS(::write(echo.fd, message, sizeof message));
      KEEPS(::recv(echo.fd, message, sizeof message, MSG_WAITALL));
    }
  }
}

TEST(Errno, IsKeptByACallThatSleeps) {
  Pair pair;
  Thread slow([&] {
    for (int i = 0; i < 20; ++i) {
      ::usleep(3000);
      put(pair.far, "x");
    }
    EXPECT_EQ(get(pair.far, 8 << 20).size(), std::size_t{8} << 20);
  });
  char byte;
  pollfd p{pair.near, POLLIN, 0};
  for (int i = 0; i < 20; ++i) {
    if (i % 2 == 0) KEEPS(::poll(&p, 1, -1));
    KEEPS(::recv(pair.near, &byte, 1, 0));
  }
  const std::string much(8 << 20, 'm');
  KEEPS(::send(pair.near, much.data(), much.size(), 0));
}

TEST(Errno, IsKeptByWaitsOptionsAndDescriptors) {
  for (const bool moves : {true, false}) {
    Pair pair(moves);
    int set = -1, copy = -1, value = 0;
    socklen_t size = sizeof value;
    KEEPS(set = ::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{.events = EPOLLIN, .data = {.fd = pair.near}};
    KEEPS(::epoll_ctl(set, EPOLL_CTL_ADD, pair.near, &event));
    for (int i = 0; i < 3; ++i) {
      put(pair.far, "x");
      KEEPS(::epoll_wait(set, &event, 1, 1000));
      KEEPS(::epoll_wait(set, &event, 1, 0));
      pollfd p{pair.near, POLLIN | POLLOUT, 0};
      KEEPS(::poll(&p, 1, 1000));
      fd_set readable;
      FD_ZERO(&readable);
      FD_SET(pair.near, &readable);
      KEEPS(::select(pair.near + 1, &readable, nullptr, nullptr, nullptr));
      KEEPS(::ioctl(pair.near, FIONREAD, &value));
      KEEPS(::recv(pair.near, &value, 1, 0));
      KEEPS(::epoll_wait(set, &event, 1, 1));
      KEEPS(::poll(&p, 1, 0));
    }
    KEEPS(::getsockopt(pair.near, SOL_SOCKET, SO_ERROR, &value, &size));
    KEEPS(::getsockopt(pair.near, SOL_SOCKET, SO_RCVLOWAT, &value, &size));
    value = 1;
    KEEPS(::setsockopt(pair.near, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value));
    KEEPS(::ioctl(pair.near, SIOCOUTQ, &value));
    KEEPS(copy = ::dup(pair.near));
    KEEPS(::fcntl(copy, F_GETFL));
    KEEPS(::close(copy));
    KEEPS(::fcntl(pair.near, F_SETFL, O_NONBLOCK));
    KEEPS(::send(pair.far, "!", 1, MSG_OOB));
    KEEPS(::shutdown(pair.near, SHUT_WR));
    KEEPS(::close(set));
    KEEPS(::close(pair.near));
    pair.near = -1;
    int other = -1;
    KEEPS(other = ::socket(AF_INET, SOCK_STREAM, 0));
    KEEPS(::close(other));
  }
}

// --- more than one call moves --------------------------------------------------------------------

constexpr std::size_t kMostInCall = 0x7fff'f000;

// 3 GiB of address space for one MiB of memory.
class Much {
 public:
  Much() {
    const auto file = static_cast<int>(::syscall(SYS_memfd_create, "much", 0));
    EXPECT_EQ(::ftruncate(file, kPiece), 0);
    at_ = static_cast<char*>(
        ::mmap(nullptr, kSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (std::size_t i = 0; i < kSize; i += kPiece) {
      EXPECT_NE(::mmap(at_ + i, kPiece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0),
                MAP_FAILED);
    }
    ::close(file);
  }
  ~Much() { ::munmap(at_, kSize); }
  Much(const Much&) = delete;
  Much& operator=(const Much&) = delete;
  char* at() const { return at_; }
  static constexpr std::size_t kSize = std::size_t{3} << 30, kPiece = std::size_t{1} << 20;

 private:
  char* at_;
};

TEST(Much, OfThreeGigabytesOneCallMovesTwo) {
  Pair pair;
  const Much much;
  Thread sender([&] {
    EXPECT_EQ(::send(pair.near, much.at(), Much::kSize, 0), static_cast<ssize_t>(kMostInCall));
    put(pair.near, "behind");
  });
  EXPECT_EQ(::recv(pair.far, much.at(), Much::kSize, MSG_WAITALL),
            static_cast<ssize_t>(kMostInCall));
  sender.join();
  EXPECT_EQ(get(pair.far, 6), "behind");
  pair.talk();
}

TEST(Much, OfManyBuffersOneCallMovesAsMuch) {
  Pair pair;
  const Much much;
  std::vector<iovec> buffers(48, iovec{much.at(), Much::kSize / 48});
  msghdr message{};
  message.msg_iov = buffers.data();
  message.msg_iovlen = buffers.size();
  Thread sender([&] {
    EXPECT_EQ(::writev(pair.near, buffers.data(), 48), static_cast<ssize_t>(kMostInCall));
  });
  EXPECT_EQ(::recvmsg(pair.far, &message, MSG_WAITALL), static_cast<ssize_t>(kMostInCall));
  sender.join();
  pair.talk();
}

// --- small stacks --------------------------------------------------------------------------------

// What a handler on a stack of its own has touched of it.
class OwnStack {
 public:
  explicit OwnStack(void (*handler)(int)) {
    ::memset(memory_, kPaint, sizeof memory_);
    const stack_t own{.ss_sp = memory_, .ss_flags = 0, .ss_size = sizeof memory_};
    EXPECT_EQ(::sigaltstack(&own, &stack_before_), 0);
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = SA_ONSTACK;
    EXPECT_EQ(::sigaction(SIGUSR1, &action, &before_), 0);
  }
  ~OwnStack() {
    ::sigaction(SIGUSR1, &before_, nullptr);
    ::sigaltstack(&stack_before_, nullptr);
  }
  OwnStack(const OwnStack&) = delete;
  OwnStack& operator=(const OwnStack&) = delete;
  std::size_t used() const {
    std::size_t unused = 0;
    while (unused < sizeof memory_ && memory_[unused] == kPaint) ++unused;
    return sizeof memory_ - unused;
  }

 private:
  static constexpr char kPaint = 0x5b;
  alignas(4096) static inline char memory_[1 << 16];
  stack_t stack_before_{};
  struct sigaction before_ {};
};

int handlers_fd = -1, handlers_set = -1;
std::atomic<bool> handler_is_right{false};

void talk_in_handler(int) {
  char out[32] = "a message", in[32];
  pollfd p{handlers_fd, POLLIN, 0};
  epoll_event event;
  bool right = true;
  for (int i = 0; i < 40 && right; ++i) {
    right = ::write(handlers_fd, out, sizeof out) == sizeof out && ::poll(&p, 1, -1) == 1 &&
            ::epoll_wait(handlers_set, &event, 1, -1) == 1 &&
            ::recv(handlers_fd, in, sizeof in, MSG_WAITALL) == sizeof in &&
            ::recv(handlers_fd, in, 1, MSG_DONTWAIT) < 0;
  }
  handler_is_right = right;
}

// The kernel's frame of a handler, and 4 KB.
TEST(SmallStack, OfAHandlerIsEnoughForAConnectionThatMovesThere) {
  const Echo echo;
  handlers_fd = echo.fd;
  handlers_set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{.events = EPOLLIN, .data = {.fd = echo.fd}};
  ASSERT_EQ(::epoll_ctl(handlers_set, EPOLL_CTL_ADD, echo.fd, &event), 0);
  const OwnStack stack(talk_in_handler);
  ASSERT_EQ(::raise(SIGUSR1), 0);
  EXPECT_TRUE(handler_is_right);
  EXPECT_TRUE(by_pipe(echo.fd));
#ifdef __OPTIMIZE__
  const std::size_t frame = std::max<std::size_t>(::getauxval(AT_MINSIGSTKSZ), 2048);
  EXPECT_LT(stack.used(), frame + 4096);
#endif
  ::close(handlers_set);
}

}  // namespace
}  // namespace clan::test
