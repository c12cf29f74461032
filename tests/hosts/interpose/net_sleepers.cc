// Two programs whose threads sleep for each other's messages, under `clan run --net`: for net.py.
//
//   interpose-net-sleepers serve PORT            says "ready", echoes what comes by kConnections
//   interpose-net-sleepers ask HOST PORT SEED    says "right", or what was wrong
//
// The one that asks sleeps in every call that can: alone and often; alone and now and then; several
// threads, one of which comes and goes; under signals, with handlers that return and one that
// jumps; and in the place of a thread that was cancelled there. Pauses are such that packets are
// fetched by the thread that sleeps, by the carrier's, and by either after the other.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kConnections = 4, kWays = 4;
constexpr unsigned kPatienceSeconds = 60;

[[noreturn]] void fail(const char* what) {
  std::printf("wrong: %s: %s\n", what, std::strerror(errno));
  std::fflush(stdout);
  ::_exit(1);
}

// One end of a connection, which sleeps in recv, poll, select or epoll_wait.
class End {
 public:
  explicit End(int fd) : fd_(fd), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    epoll_event event{};
    event.events = EPOLLIN;
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
  }
  void send(const std::string& text) const {
    if (::send(fd_, text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size()))
      fail("send");
  }
  /// False: the other end has closed.
  bool receive(std::string& text, int way) {
    for (std::size_t got = 0; got < text.size();) {
      if (way != 0) sleep(way);
      const ssize_t n =
          ::recv(fd_, &text[got], text.size() - got, way == 0 ? 0 : int{MSG_DONTWAIT});
      if (n == 0) return false;
      if (n < 0 && errno != EINTR && errno != EAGAIN) fail("recv");
      if (n > 0) got += static_cast<std::size_t>(n);
    }
    return true;
  }
  /// There are bytes, or a signal has come.
  void sleep(int way) const {
    pollfd p{fd_, POLLIN, 0};
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd_, &in);
    epoll_event event;
    const int n = way == 1   ? ::poll(&p, 1, -1)
                  : way == 2 ? ::select(fd_ + 1, &in, nullptr, nullptr, nullptr)
                             : ::epoll_wait(epoll_, &event, 1, -1);
    if (n < 0 && errno != EINTR) fail("a wait");
  }

 private:
  int fd_, epoll_;
};

void echo(End end) {
  std::string text(kWays, 0);
  for (int i = 0; end.receive(text, i % kWays); ++i) end.send(text);
}

void exchange(End& end, int i, int way) {
  const std::string text = std::to_string(1000 + i % 1000);
  std::string back(text.size(), 0);
  end.send(text);
  if (!end.receive(back, way)) fail("the other end has closed");
  if (back != text) fail("bytes");
}

void nap(int us) {
  const timespec t{0, us * 1000L};
  ::nanosleep(&t, nullptr);
}

// With pauses in which nobody, the thread or the carrier's has the packets.
void exchanges(End& end, int times, unsigned seed, int way = -1) {
  std::mt19937 dice(seed);
  constexpr int kPauses[] = {0, 0, 0, 0, 300, 1000, 3000, 8000};
  for (int i = 0; i < times; ++i) {
    if (i % 10 == 0) nap(kPauses[dice() % std::size(kPauses)]);
    exchange(end, i, way >= 0 ? way : static_cast<int>(dice() % kWays));
  }
}

void many(std::vector<End>& ends, unsigned seed) {
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    threads.emplace_back([&, i] {
      // One of them comes and goes.
      for (int k = 0; k < 10; ++k) {
        if (i == 0) nap(5000);
        exchanges(ends[i], 40, seed + static_cast<unsigned>(i));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

thread_local sigjmp_buf t_out;
thread_local volatile sig_atomic_t t_may_jump = 0;
std::atomic<int> handled{0}, jumped{0};

void handle(int) { ++handled; }
void jump(int) {
  if (t_may_jump == 0) return;
  t_may_jump = 0;
  ++jumped;
  siglongjmp(t_out, 1);
}

// The handler may take the thread out of its wait, in which no byte is read.
void jump_out(End& end, int way) {
  if (sigsetjmp(t_out, 1) == 0) {
    t_may_jump = 1;
    end.sleep(way);
  }
  t_may_jump = 0;
}

void under_signals(End& end, unsigned seed) {
  struct sigaction action {};
  action.sa_handler = handle;
  ::sigaction(SIGUSR1, &action, nullptr);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR2, &action, nullptr);
  action.sa_handler = jump;
  ::sigaction(SIGALRM, &action, nullptr);
  std::atomic<bool> over{false};
  const pthread_t target = ::pthread_self();
  std::thread sender([&] {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    constexpr int kSignals[] = {SIGUSR1, SIGUSR2, SIGALRM};
    for (unsigned i = 0; !over; ++i) {
      ::pthread_kill(target, kSignals[i % 3]);
      nap(i % 7 == 0 ? 2500 : 150);
    }
  });
  std::mt19937 dice(seed);
  for (int i = 0; i < 1500 || handled < 100 || jumped < 20; ++i) {
    const std::string text = std::to_string(1000 + i % 1000);
    std::string back(text.size(), 0);
    end.send(text);
    jump_out(end, 1 + static_cast<int>(dice() % 3));
    if (!end.receive(back, static_cast<int>(dice() % kWays)) || back != text) fail("under signals");
  }
  over = true;
  sender.join();
}

// The thread sleeps for ever, when it has come often or is about to, and is cancelled there.
void after_cancelled(std::vector<End>& ends, unsigned seed) {
  for (int i = 0; i < 40; ++i) {
    End& end = ends[static_cast<std::size_t>(i) % ends.size()];
    std::atomic<bool> waits{false};
    std::thread sleeper([&] {
      for (int k = 0; k < i % 6; ++k) exchange(end, k, i % kWays);
      waits = true;
      std::string more(4, 0);
      for (;;) i % kWays == 0 ? (void)end.receive(more, 0) : end.sleep(i % kWays);
    });
    while (!waits) nap(50);
    if (i % 2 == 0) nap(4000);
    ::pthread_cancel(sleeper.native_handle());
    sleeper.join();
    exchanges(end, 20, seed + static_cast<unsigned>(i), i % kWays);
  }
}

sockaddr_in address_of(const char* host, const char* port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<std::uint16_t>(std::atoi(port)));
  ::inet_pton(AF_INET, host, &a.sin_addr);
  return a;
}

void serve(const char* port) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const sockaddr_in a = address_of("0.0.0.0", port);
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&a), sizeof a) != 0) fail("bind");
  if (::listen(listener, kConnections) != 0) fail("listen");
  std::puts("ready");
  std::fflush(stdout);
  std::vector<std::thread> threads;
  for (int i = 0; i < kConnections; ++i) {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) fail("accept");
    threads.emplace_back([fd] { echo(End(fd)); });
  }
  for (auto& thread : threads) thread.join();
  std::puts("right");
}

void ask(const char* host, const char* port, unsigned seed) {
  std::vector<End> ends;
  std::vector<int> fds;
  for (int i = 0; i < kConnections; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in a = address_of(host, port);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&a), sizeof a) != 0) fail("connect");
    ends.emplace_back(fd);
    fds.push_back(fd);
  }
  for (auto& end : ends) {
    for (int i = 0; i < 60; ++i) nap(1000), exchange(end, i, 0);  // it moves
  }
  for (int way = 0; way < kWays; ++way) exchanges(ends[0], 1000, seed, way);
  exchanges(ends[1], 1000, seed);
  many(ends, seed);
  under_signals(ends[0], seed);
  after_cancelled(ends, seed);
  many(ends, seed + 1);
  for (const int fd : fds) ::close(fd);
  std::puts("right");
}

}  // namespace

int main(int argc, char** argv) {
  std::thread([] {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    ::sleep(kPatienceSeconds);
    errno = ETIMEDOUT;
    fail("a thread sleeps for ever");
  }).detach();
  if (argc == 3 && std::strcmp(argv[1], "serve") == 0) {
    serve(argv[2]);
  } else if (argc == 5 && std::strcmp(argv[1], "ask") == 0) {
    ask(argv[2], argv[3], static_cast<unsigned>(std::atoi(argv[4])));
  } else {
    return 2;
  }
  return 0;
}
