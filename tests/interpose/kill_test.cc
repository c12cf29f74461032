// kill -9 of one end of a connection that has moved, moves, or goes back to TCP, at any moment. The
// survivor reads a prefix of what was written, all that send() had confirmed to the dead process,
// then the end as TCP shows it. It never hangs, never reads a wrong byte and keeps nothing. Run
// with the interposer preloaded, and without. The same of one of two processes that share an end,
// at each of its system calls: the other one goes on.
#include <sys/epoll.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <span>

#include "connection.h"
#include "support/pattern.h"

namespace clan::test {
namespace {

enum class Scene {
  kMoving,    ///< both talk, and one dies about when the connection moves
  kPing,      ///< both talk in turns
  kBothWays,  ///< both write and read as fast as they can
  kVictimWrites,
  kSurvivorWrites,
  kVictimFull,      ///< the victim has filled what there is to fill, and sleeps; then its bytes are
                    ///< read
  kSurvivorFull,    ///< the survivor has, and sleeps
  kIdle,            ///< the survivor sleeps in a read
  kVictimUrgent,    ///< the victim's urgent data takes the connection back to TCP while it writes
  kSurvivorUrgent,  ///< the survivor's, while the victim writes
};

// What a round's processes and the test know of it. Shared.
struct Record {
  std::atomic<std::uint64_t> sent;  ///< by the victim, behind the warming-up
  std::atomic<int> round, moved;
  char failure[400];
};
Record* record = nullptr;

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...) {
  va_list list;
  va_start(list, format);
  std::vsnprintf(record->failure, sizeof record->failure, format, list);
  va_end(list);
  ::_exit(1);
}

// kill -9 of the calling process, from the kernel's clock.
void die_in(long microseconds) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer;
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0)
    fail("timer_create: %s", std::strerror(errno));
  const itimerspec when{{0, 0}, {microseconds / 1'000'000, microseconds % 1'000'000 * 1000 + 1}};
  ::timer_settime(timer, 0, &when, nullptr);
}

bool gone(int error) { return error == ECONNRESET || error == EPIPE; }

// Describes the pipe, for a message.
std::string state() {
  std::string text;
  for (const int fd : pipes()) {
    const PipePage* page = page_of(fd);
    for (const auto& end : page->ends) {
      for (const auto& word : end.face.words) text += std::to_string(word.load()) + " ";
      text += "ended " + std::to_string(end.sender.ended.load()) + "; ";
    }
    text += "broken " + std::to_string(page->head.broken.load());
  }
  return text;
}

// One end. The bytes of each direction know where they belong.
class Side {
 public:
  Side(int fd, std::uint64_t seed, bool victim)
      : fd_(fd), random_(seed * 2 + victim), victim_(victim) {
    seed_out_ = seed * 2 + victim;
    seed_in_ = seed * 2 + !victim;
  }

  // False: the other end is gone.
  bool write_some(int flags = 0) {
    const std::size_t n = random_.size_up_to(victim_ || random_.below(2) == 0 ? 60'000 : 2000);
    fill_pattern(std::span(bytes_).first(n), seed_out_, out_);
    const ssize_t k = ::send(fd_, bytes_.data(), n, flags | MSG_NOSIGNAL);
    if (k < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (k < 0 && gone(errno)) return false;
    if (k < 0) fail("send: %s", std::strerror(errno));
    out_ += static_cast<std::uint64_t>(k);
    if (victim_) record->sent.store(out_);
    return true;
  }
  bool read_some(int flags = 0, std::size_t most = 60'000) {
    const std::size_t n = most < 60'000 ? most : random_.size_up_to(most);
    const ssize_t k = ::recv(fd_, bytes_.data(), n, flags);
    if (k < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (k == 0 || (k < 0 && gone(errno))) return false;
    if (k < 0) fail("recv: %s", std::strerror(errno));
    const auto got = std::span(bytes_).first(static_cast<std::size_t>(k));
    if (const std::size_t wrong = first_wrong_byte(got, seed_in_, in_); wrong != got.size()) {
      fail(
          "byte %llu is wrong, %zu of %zd in a read, and belongs at %lld; the other end has "
          "written %llu",
          static_cast<unsigned long long>(in_) + wrong, wrong, k, place_of(got.subspan(wrong)),
          static_cast<unsigned long long>(record->sent.load()));
    }
    in_ += got.size();
    return true;
  }
  // Where in the stream bytes are from that are not where they belong. -1: nowhere near.
  long long place_of(std::span<const std::byte> bytes) const {
    if (bytes.size() < 8) return -1;
    for (std::uint64_t at = in_ - std::min<std::uint64_t>(in_, 4 << 20); at < in_ + (4 << 20);
         ++at) {
      if (is_pattern(bytes.first(8), seed_in_, at)) return static_cast<long long>(at);
    }
    return -1;
  }
  // A message each way.
  bool take_turns(int rounds, std::size_t size) {
    for (int i = 0; i < rounds; ++i) {
      for (const bool writes : {!victim_, victim_}) {
        const std::uint64_t until = (writes ? out_ : in_) + size;
        while (!writes && in_ < until) {
          if (!read_some(0, until - in_)) return false;
        }
        while (writes && out_ < until) {
          fill_pattern(std::span(bytes_).first(size), seed_out_, out_);
          const ssize_t k = ::send(fd_, bytes_.data(), until - out_, MSG_NOSIGNAL);
          if (k < 0 && gone(errno)) return false;
          if (k < 0) fail("send: %s", std::strerror(errno));
          out_ += static_cast<std::uint64_t>(k);
        }
      }
    }
    return true;
  }
  void both_ways(bool by_epoll) {
    const int set = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{EPOLLIN | EPOLLOUT, {}};
    if (::epoll_ctl(set, EPOLL_CTL_ADD, fd_, &event) != 0)
      fail("epoll_ctl: %s", std::strerror(errno));
    for (bool on = true; on;) {
      pollfd p{fd_, POLLIN | POLLOUT, 0};
      if (by_epoll) {
        const int n = ::epoll_wait(set, &event, 1, -1);
        p.revents = n > 0 ? static_cast<short>(event.events) : short{0};
      } else {
        ::poll(&p, 1, -1);
      }
      if ((p.revents & (POLLIN | POLLHUP | POLLERR)) != 0) on = read_some(MSG_DONTWAIT);
      if (on && (p.revents & POLLOUT) != 0) (void)write_some(MSG_DONTWAIT);
    }
    ::close(set);
  }
  // Sleeps in one of three ways until there is something to read.
  void read_all() {
    const auto way = random_.below(3);
    if (way == 0) {
      while (read_some()) {
      }
      return;
    }
    const int set = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{EPOLLIN, {}};
    ::epoll_ctl(set, EPOLL_CTL_ADD, fd_, &event);
    for (bool on = true; on;) {
      pollfd p{fd_, POLLIN, 0};
      if (way == 1) {
        ::poll(&p, 1, -1);
      } else {
        ::epoll_wait(set, &event, 1, -1);
      }
      on = read_some(MSG_DONTWAIT);
    }
    ::close(set);
  }
  void write_all() {
    while (write_some()) {
    }
  }
  void urgent() {
    if (::send(fd_, "!", 1, MSG_OOB | MSG_NOSIGNAL) < 0 && !gone(errno))
      fail("urgent: %s", std::strerror(errno));
  }
  // What is said of an end goes on being said.
  void stays_ended() {
    for (int i = 0; i < 3; ++i) {
      const ssize_t n = ::recv(fd_, bytes_.data(), 100, 0);
      if (n > 0 || (n < 0 && !gone(errno)))
        fail("recv after the end: %zd, %s", n, std::strerror(errno));
    }
    for (int i = 0;; ++i) {
      const ssize_t n = ::send(fd_, bytes_.data(), 100, MSG_NOSIGNAL);
      if (n < 0 && gone(errno)) break;
      if (n < 0 || i > 1000)
        fail("send after the end: %zd, %s; %s", n, std::strerror(errno), state().c_str());
      ::usleep(100);
    }
  }
  std::uint64_t in() const { return in_; }
  std::uint64_t out() const { return out_; }
  Random& random() { return random_; }

 private:
  int fd_;
  Random random_;
  bool victim_;
  std::uint64_t seed_out_, seed_in_, out_ = 0, in_ = 0;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(60'000);
};

constexpr int kWarmUp = 12;

void victim(int fd, Scene scene, std::uint64_t seed) {
  Side side(fd, seed, true);
  const auto soon =
      static_cast<long>(side.random().below(side.random().below(2) == 0 ? 500 : 6000));
  if (scene == Scene::kMoving) {
    die_in(static_cast<long>(side.random().below(1000)));
  } else {
    if (!side.take_turns(kWarmUp, 500)) return;
    const bool full = scene == Scene::kVictimFull || scene == Scene::kSurvivorFull;
    die_in(full ? 5000 + soon : soon);
  }
  switch (scene) {
    case Scene::kMoving:
    case Scene::kPing: side.take_turns(1'000'000, 700); break;
    case Scene::kBothWays: side.both_ways(side.random().below(2) == 0); break;
    case Scene::kSurvivorWrites: side.read_all(); break;
    case Scene::kSurvivorFull:
    case Scene::kIdle: break;
    case Scene::kVictimUrgent: {
      const auto before = side.random().below(20);
      for (std::uint64_t i = 0; i < before; ++i) side.write_some();
      side.urgent();
      side.write_all();
      break;
    }
    default: side.write_all();
  }
  for (;;) ::pause();  // until it dies
}

void survivor(int fd, Scene scene, std::uint64_t seed, pid_t other) {
  Side side(fd, seed, false);
  bool on = scene == Scene::kMoving || side.take_turns(kWarmUp, 500);
  bool all = false;  // it reads to the end, and writes nothing
  if (on) {
    switch (scene) {
      case Scene::kMoving:
      case Scene::kPing: side.take_turns(1'000'000, 700); break;
      case Scene::kBothWays: side.both_ways(side.random().below(2) == 0); break;
      case Scene::kSurvivorWrites:
      case Scene::kSurvivorFull: side.write_all(); break;
      case Scene::kVictimFull: {
        siginfo_t info{};
        ::waitid(P_PID, static_cast<id_t>(other), &info, WEXITED | WNOWAIT);
        [[fallthrough]];
      }
      case Scene::kVictimWrites:
      case Scene::kVictimUrgent:
      case Scene::kIdle:
        side.read_all();
        all = true;
        break;
      case Scene::kSurvivorUrgent: {
        const auto before = side.random().below(50);
        for (std::uint64_t i = 0; on && i < before; ++i) on = side.read_some();
        side.urgent();
        if (on) side.read_all();
        break;
      }
    }
  }
  if (all && side.in() < record->sent.load()) {
    fail("%llu bytes read, %llu were sent", static_cast<unsigned long long>(side.in()),
         static_cast<unsigned long long>(record->sent.load()));
  }
  record->moved += pipes().empty() ? 0 : 1;
  while (side.read_some()) {
  }
  side.stays_ended();
}

// Files whose names contain `part`.
std::size_t count_of(const char* directory, const char* part = "") {
  std::size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    n += entry.path().filename().string().find(part) != std::string::npos ? 1 : 0;
  }
  return n;
}

/// Counts those of connections: not the one memfd in which a process says why they stay on TCP.
std::size_t descriptors_here() {
  std::size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code none;
    const std::string link = std::filesystem::read_symlink(entry, none);
    n += link.find("/memfd:clan-slots-") == std::string::npos ? 1 : 0;
  }
  return n;
}

int rounds_of(Scene scene, bool victim_connects, int rounds, std::uint64_t seed) {
  const std::size_t descriptors = descriptors_here();
  for (int round = 0; round < rounds; ++round) {
    ::alarm(15);  // nothing takes nearly as long
    record->round = round;
    record->sent = 0;
    const int listening = listener();
    const std::uint64_t of_round = mix(seed + static_cast<std::uint64_t>(round)) >> 8;
    const pid_t other = child(
        [&] {
          const int fd = victim_connects ? connect_to(port_of(listening))
                                         : ::accept(listening, nullptr, nullptr);
          victim(fd, scene, of_round);
          return 0;
        },
        20);
    const int fd =
        victim_connects ? ::accept(listening, nullptr, nullptr) : connect_to(port_of(listening));
    survivor(fd, scene, of_round, other);
    ::close(fd);
    ::close(listening);
    if (const int result = result_of(other); result != -SIGKILL)
      fail("the victim ended with %d", result);
  }
  if (descriptors_here() != descriptors) fail("descriptors were left open");
  if (!pipes().empty()) fail("pipes were left open");
  return 0;
}

class Killed : public testing::TestWithParam<Scene> {
 protected:
  void run(bool victim_connects) {
    void* memory =
        ::mmap(nullptr, sizeof(Record), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    record = new (memory) Record{};
    const char* wanted = std::getenv("CLAN_TEST_SEED");
    const std::uint64_t seed =
        wanted != nullptr ? std::strtoull(wanted, nullptr, 10)
                          : static_cast<std::uint64_t>(
                                std::chrono::steady_clock::now().time_since_epoch().count());
    const char* more = std::getenv("CLAN_TEST_ROUNDS");
    const int rounds = more != nullptr ? std::atoi(more) : 40;
    const std::size_t files = count_of("/dev/shm", "clan");
    const int result =
        result_of(child([&] { return rounds_of(GetParam(), victim_connects, rounds, seed); }, 0));
    EXPECT_EQ(result, 0) << "in round " << record->round << " of CLAN_TEST_SEED=" << seed << ": "
                         << (result == -SIGALRM ? "hangs" : record->failure);
    EXPECT_EQ(count_of("/dev/shm", "clan"), files);
    if (std::getenv("LD_PRELOAD") != nullptr && GetParam() != Scene::kMoving &&
        GetParam() != Scene::kVictimUrgent && GetParam() != Scene::kSurvivorUrgent) {
      EXPECT_GE(record->moved * 10, record->round * 9);
    }
    ::munmap(memory, sizeof(Record));
  }
};

TEST_P(Killed, ClientLeavesItsServerAPrefixAndAnEnd) { run(true); }
TEST_P(Killed, ServerLeavesItsClientAPrefixAndAnEnd) { run(false); }

const char* const kNames[] = {"Moving",         "Ping",          "BothWays",     "VictimWrites",
                              "SurvivorWrites", "VictimFull",    "SurvivorFull", "Idle",
                              "VictimUrgent",   "SurvivorUrgent"};
INSTANTIATE_TEST_SUITE_P(At, Killed,
                         testing::Values(Scene::kMoving, Scene::kPing, Scene::kBothWays,
                                         Scene::kVictimWrites, Scene::kSurvivorWrites,
                                         Scene::kVictimFull, Scene::kSurvivorFull, Scene::kIdle,
                                         Scene::kVictimUrgent, Scene::kSurvivorUrgent),
                         [](const auto& scene) {
                           return std::string(kNames[static_cast<int>(scene.param)]);
                         });

// --- one of two processes that share an end ------------------------------------------------------

constexpr int kStopped = SIGTRAP | 0x80;  ///< at a system call

// Talks to the server of an Echo, with pauses, so that both sleep and are woken.
int talk_as(char letter, int fd, int messages) {
  const std::string out(300, letter);
  char in[1000];
  for (int i = 0; i < messages; ++i) {
    ::usleep(200);
    if (::write(fd, out.data(), out.size()) != 300) return 1;
    ::usleep(200);
    for (std::ptrdiff_t got = 0; got < 300;) {  // past what the other one has left behind
      const ssize_t n = ::read(fd, in, sizeof in);
      if (n <= 0) return 2;
      got += std::count(in, in + n, letter);
    }
  }
  return 0;
}

// Kills the process at the beginning or the end of its `n`th system call. False: it has ended
// before.
bool kill_at(pid_t process, int n) {
  int status = 0;
  if (::waitpid(process, &status, 0) != process || !WIFSTOPPED(status)) return false;
  ::ptrace(PTRACE_SETOPTIONS, process, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  for (int calls = 0; calls < n; calls += WSTOPSIG(status) == kStopped) {
    ::ptrace(PTRACE_SYSCALL, process, nullptr, nullptr);
    if (::waitpid(process, &status, 0) != process || !WIFSTOPPED(status)) return false;
  }
  ::kill(process, SIGKILL);
  ::waitpid(process, &status, 0);
  return true;
}

bool can_trace() {
  return result_of(
             child([] { return ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0 ? 0 : 1; })) == 0;
}

// One that is killed may have a counter of the shared socket closed, or owe the other end a ring.
void kill_sharer_at_each_call(bool moves_before) {
  if (!can_trace()) GTEST_SKIP() << "ptrace() is forbidden";
  for (int n = 1; !testing::Test::HasFailure(); n += moves_before ? 1 : 3) {
    Echo echo;
    if (moves_before) {
      ping(echo.fd, 30);
      EXPECT_TRUE(by_pipe(echo.fd));
    }
    const pid_t other = child([&] {
      ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      ::raise(SIGSTOP);
      return talk_as('o', echo.fd, moves_before ? 6 : 12);
    });
    const bool killed = kill_at(other, n);
    // In a child, as it may hang.
    EXPECT_EQ(result_of(child([&] { return talk_as('s', echo.fd, 8); }, 8)), 0)
        << "after call " << n;
    if (!killed) return;
  }
}

TEST(Sharer, KilledAtAnySystemCallLeavesTheSocketToTheOther) { kill_sharer_at_each_call(true); }
TEST(Sharer, KilledWhileTheSocketMovesLeavesItToTheOther) { kill_sharer_at_each_call(false); }

}  // namespace
}  // namespace clan::test
