// What tests of the interposer share: a TCP connection between this process and a child, and
// whether it has moved into shared memory. The test programs run with the library preloaded, and
// some without it too.
#pragma once

#include <arpa/inet.h>
#include <clan/face/pipe.h>
#include <clan/face/socket_face.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace clan::test {

/// The library is loaded. What tests expect of it beyond what the kernel does they ask for only
/// then.
inline bool preloaded() { return std::getenv("LD_PRELOAD") != nullptr; }

/// A system call past everybody.
inline long instruction(long number, long a, long b = 0, long c = 0, long d = 0, long e = 0,
                        long f = 0) {
#ifdef __x86_64__
  long rc = number;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "+a"(rc)
               : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return rc;
#else
  return ::syscall(number, a, b, c, d, e, f);
#endif
}

inline sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// Listens on a port that is free.
inline int listener() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(0);
  EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(fd, 64), 0);
  return fd;
}
inline std::uint16_t port_of(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}
inline int connect_to(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  ::close(fd);
  return -1;
}

/// What `in_child` returns is the exit code. The child ends with the thread that made it, and after
/// `seconds`.
template <typename F>
pid_t child(F&& in_child, unsigned seconds = 60) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(seconds);
    ::_exit(in_child());
  }
  return pid;
}
inline int result_of(pid_t pid) {
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/// A pipe's shared page in this process, unmapped by nobody.
inline PipePage* page_of(int memfd) {
  void* memory = ::mmap(nullptr, sizeof(PipePage), PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<PipePage*>(memory);
}
/// Descriptors of pipes that this process has.
inline std::vector<int> pipes() {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code none;
    if (std::filesystem::read_symlink(entry, none) != "/memfd:clan-pipe (deleted)") continue;
    found.push_back(std::atoi(entry.path().filename().c_str()));
  }
  return found;
}
/// Sent by the pipes that this process has open.
inline std::uint64_t bytes_by_shared_memory() {
  std::uint64_t sum = 0;
  for (const int fd : pipes()) {
    PipePage* page = page_of(fd);
    if (page == nullptr) continue;
    for (const auto& end : page->ends) sum += end.sender.bytes.load();
    ::munmap(page, sizeof *page);
  }
  return sum;
}

/// What the library keeps of this socket, or null. Unmapped by nobody.
inline PipePage::Face* face_of(int fd) {
  std::uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  if (::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) != 0) return nullptr;
  for (const int memfd : pipes()) {
    PipePage* page = page_of(memfd);
    if (page == nullptr) continue;
    for (auto& end : page->ends) {
      if (end.face.words[socket_face::kCookie].load() == cookie) return &end.face;
    }
    ::munmap(page, sizeof *page);
  }
  return nullptr;
}

/// The same, with its cursors.
inline PipePage::End* end_of(int fd) {
  // The face is a part of its end.
  PipePage::Face* const face = face_of(fd);
  return face == nullptr ? nullptr
                         : reinterpret_cast<PipePage::End*>(reinterpret_cast<char*>(face) -
                                                            offsetof(PipePage::End, face));
}

/// How the connection behind a socket of this process goes.
struct Way {
  bool sends_by_pipe = false, receives_by_pipe = false;
  std::uint64_t sent = 0, received = 0;  ///< bytes by shared memory
};
inline Way way_of(int fd) {
  using namespace socket_face;
  std::uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  if (::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) != 0) return {};
  Way way;
  for (const int memfd : pipes()) {
    PipePage* page = page_of(memfd);
    if (page == nullptr) continue;
    for (int i = 0; i < 2; ++i) {
      const auto &mine = page->ends[i], &theirs = page->ends[1 - i];
      if (mine.face.words[kCookie].load() != cookie) continue;
      auto sends = [](const PipePage::End& end) {
        return (end.face.words[kState].load() & (kSending | kGone)) == kSending;
      };
      way = {sends(mine), sends(theirs), mine.sender.bytes.load(), theirs.sender.bytes.load()};
    }
    ::munmap(page, sizeof *page);
  }
  return way;
}
/// Both directions go by shared memory. True without the library: there is nothing to see.
inline bool by_pipe(int fd) {
  const Way way = way_of(fd);
  return !preloaded() || (way.sends_by_pipe && way.receives_by_pipe);
}
inline bool by_tcp(int fd) {
  const Way way = way_of(fd);
  return !way.sends_by_pipe && !way.receives_by_pipe;
}

inline int echo(int fd) {
  char buffer[4096];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n <= 0) return n == 0 ? 0 : 1;
    if (::write(fd, buffer, static_cast<std::size_t>(n)) != n) return 2;
  }
}

/// `rounds` messages there and back.
inline void ping(int fd, int rounds) {
  std::vector<char> out(1000), in(1000);
  for (int i = 0; i < rounds; ++i) {
    std::memset(out.data(), i, out.size());
    ASSERT_EQ(::write(fd, out.data(), out.size()), 1000);
    ASSERT_EQ(::recv(fd, in.data(), in.size(), MSG_WAITALL), 1000);
    ASSERT_EQ(in, out);
  }
}

/// Both ends of a connection in this process. It has moved, unless that is not wanted.
class Pair {
 public:
  explicit Pair(bool moves = true) {
    const int listening = listener();
    near = connect_to(port_of(listening));
    far = ::accept(listening, nullptr, nullptr);
    ::close(listening);
    if (moves) move();
  }
  /// Takes a connection made elsewhere, which has not moved yet.
  Pair(int connected, int accepted) : near(connected), far(accepted) {}
  ~Pair() {
    close_near();
    close_far();
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  int near = -1, far = -1;  ///< connected, accepted

  void close_near() {
    if (near >= 0) ::close(std::exchange(near, -1));
  }
  void close_far() {
    if (far >= 0) ::close(std::exchange(far, -1));
  }
  /// A few messages each way.
  void talk(int rounds = 20) const {
    char in[100];
    for (int i = 0; i < rounds; ++i) {
      std::string out(100, static_cast<char>('a' + i % 26));
      for (const auto& [from, to] : {std::pair{near, far}, std::pair{far, near}}) {
        ASSERT_EQ(::write(from, out.data(), out.size()), 100) << std::strerror(errno);
        ASSERT_EQ(::recv(to, in, sizeof in, MSG_WAITALL), 100) << std::strerror(errno);
        ASSERT_EQ(std::string_view(in, sizeof in), out);
      }
    }
  }
  void move() {
    talk();
    EXPECT_TRUE(by_pipe(near)) << "the connection has not moved";
    before_ = way_of(near);
  }
  /// Since the last question, or since it moved: bytes that the pipe carried each way.
  void expect_carried(std::uint64_t there, std::uint64_t back) {
    const Way now = way_of(near);
    if (preloaded()) {
      EXPECT_EQ(now.sent - before_.sent, there);
      EXPECT_EQ(now.received - before_.received, back);
    }
    before_ = now;
  }

 private:
  Way before_;
};

/// A connection that has moved, and whose other end a child has, which goes on by command.
class Peer {
 public:
  template <typename F>
  explicit Peer(F serve, bool moves = true) {
    const int listening = listener();
    pid = child(
        [&] {
          const int end = ::accept(listening, nullptr, nullptr);
          ::close(listening);
          char buffer[1000];
          for (int i = 0; moves && i < kRounds; ++i) {
            if (::recv(end, buffer, sizeof buffer, MSG_WAITALL) != 1000) return 101;
            if (::write(end, buffer, sizeof buffer) != 1000) return 102;
          }
          if (moves && ::read(end, buffer, 1) != 1) return 103;
          return serve(end);
        },
        15);
    fd = connect_to(port_of(listening));
    ::close(listening);
    if (!moves) return;
    ping(fd, kRounds);
    EXPECT_TRUE(by_pipe(fd)) << "the connection has not moved";
    EXPECT_EQ(::write(fd, "!", 1), 1);
  }
  ~Peer() {
    close();
    if (pid > 0) {
      EXPECT_EQ(result(), 0);
    }
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  pid_t pid = -1;
  int fd = -1;

  void close() {
    if (fd >= 0) ::close(std::exchange(fd, -1));
  }
  int result() { return result_of(std::exchange(pid, -1)); }

 private:
  static constexpr int kRounds = 30;
};

/// Waits, a minute at most, for something that has to come by itself.
template <typename F>
bool comes_true(F&& what) {
  for (int i = 0; i < 60'000; ++i) {
    if (what()) return true;
    ::usleep(1000);
  }
  return what();
}

/// What the kernel says of a thread of this process, or of a child: 'R', 'S' and so on, or 0.
inline char state_of(pid_t tid) {
  const std::string path = "/proc/" + std::to_string(tid) + "/stat";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  char text[256] = {};
  const ssize_t n = ::read(fd, text, sizeof text - 1);
  if (fd >= 0) ::close(fd);
  const char* name_end = n > 0 ? std::strrchr(text, ')') : nullptr;
  return name_end != nullptr ? name_end[2] : '\0';
}

/// A thread of this process, or a child, sleeps in the kernel, and not just for a moment.
inline bool sleeps(const std::atomic<pid_t>& tid) {
  int looks = 0;
  return comes_true([&] {
    looks = state_of(tid.load()) == 'S' ? looks + 1 : 0;
    return looks == 5;
  });
}

/// A thread that the test can wait for to fall asleep in the kernel.
class Thread {
 public:
  template <typename F>
  explicit Thread(F run)
      : thread_([this, run = std::move(run)] {
          tid_.store(static_cast<pid_t>(::syscall(SYS_gettid)));
          run();
          done_.store(true);
        }) {}
  ~Thread() {
    if (thread_.joinable()) thread_.join();
  }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  void join() { thread_.join(); }
  bool done() const { return done_.load(); }
  bool ends() const {
    return comes_true([this] { return done(); });
  }
  pthread_t handle() { return thread_.native_handle(); }
  /// False: it has ended instead, or does not sleep.
  bool falls_asleep() const { return sleeps(tid_) && !done(); }

 private:
  std::atomic<pid_t> tid_{0};
  std::atomic<bool> done_{false};
  std::thread thread_;
};

/// A test that takes longer than `kSeconds` ends the program: some call does not return.
class Watchdog : public testing::EmptyTestEventListener {
 public:
  /// For the initializer of a global.
  static bool start() {
    testing::UnitTest::GetInstance()->listeners().Append(new Watchdog);
    return true;
  }

 private:
  static constexpr unsigned kSeconds = 100;
  void OnTestStart(const testing::TestInfo&) override { ::alarm(kSeconds); }
  void OnTestEnd(const testing::TestInfo&) override { ::alarm(0); }
};

inline void put(int fd, std::string_view text) {
  ASSERT_EQ(::send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()))
      << std::strerror(errno);
}
/// What comes until there are `n` bytes or the end.
inline std::string get(int fd, std::size_t n) {
  std::string in(n, 0);
  const ssize_t got = ::recv(fd, in.data(), n, MSG_WAITALL);
  in.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return in;
}
/// Nothing is there to be read.
inline bool silent(int fd) {
  char byte;
  return ::recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == -1 && errno == EAGAIN;
}

/// A child that sends back all it gets on one connection, and our end of that.
struct Echo {
  pid_t server = -1;
  int fd = -1;
  Echo() {
    const int listening = listener();
    server = child([&] { return echo(::accept(listening, nullptr, nullptr)); });
    fd = connect_to(port_of(listening));
    ::close(listening);
  }
  ~Echo() {
    ::close(fd);
    EXPECT_EQ(result_of(server), 0);
  }
  Echo(const Echo&) = delete;
  Echo& operator=(const Echo&) = delete;
};

}  // namespace clan::test
