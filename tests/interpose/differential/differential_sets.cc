// Threads that share epoll sets, clients whose writes are ordered by each other, and all kinds of
// descriptors in one set: the part of the differential test that is run by --sets (differential.cc
// has the other one).
//
//      director (main thread)      owns what can be waited for, and the sets; makes every step in
//                                  turn
//        pollers, workers          threads that wait in its sets, in some steps
//        clients 0 and 1           processes; client 2: a thread of this process
//
// A step first decides what the clients do, one after the other: each has returned from its call
// before the next one begins, so all that happens has one order. Then it waits in some way and
// prints the answer. Clients are commanded through shared memory and futexes, as other descriptors
// that they write to would be seen (PipeStamp).
//
// What a step says must be the kernel's doing alone, not that of timing:
//   - the order of one answer is printed for each kind of descriptor by itself, and for a
//     descriptor that has not moved beside sockets that have if it is the only one: more is not
//     promised (docs/interposition.md)
//   - where threads wait at once the transcript has how often each source was reported, and what
//     came out of it
//   - TCP that has not moved may arrive late on a busy machine: the director sees to it that it has
//     arrived
#include "differential_sets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "differential_actor.h"
#include "differential_dice.h"

namespace clan::interpose_test {
namespace {

constexpr int kClients = 3;
constexpr int kMostSources = 16;
constexpr int kPlain = 3;  ///< pipes, and eventfds, of the director
constexpr int kWarmRounds = 12;
constexpr int kHangSeconds = 10;

[[noreturn]] void die(const std::string& why) {
  std::printf("%s\n", why.c_str());
  std::fflush(stdout);
  ::_exit(1);
}
void check(bool good, const char* what) {
  if (!good) die(std::string(what) + ": " + std::strerror(errno));
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// --- the clients ---------------------------------------------------------------------------------

enum class Act {
  kConnect,
  kWrite,
  kRead,
  kShut,
  kClose,
  kPing,
  kVisit,
  kPipe,
  kEventfd,
  kLog,
  kQuit
};

struct Action {
  Act act = Act::kQuit;
  int index = 0;  ///< of the source
  int a = 0;      ///< port, bytes or rounds
  int b = 0;      ///< bytes
};

constexpr int kMostActions = 8;

/// One client's, in shared memory.
struct Desk {
  std::atomic<std::uint32_t> turn{0};  ///< odd: the client's
  int count = 0;
  Action actions[kMostActions];
  int wrong = 0;  ///< errno, or -1 for bytes that differ
};

struct Shared {
  Desk desks[kClients];
};

void futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value) {
  ::syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}
void wait_until(std::atomic<std::uint32_t>& word, bool odd) {
  for (;;) {
    const std::uint32_t now = word.load(std::memory_order_acquire);
    if ((now & 1) == (odd ? 1u : 0u)) return;
    futex(word, FUTEX_WAIT, now);
  }
}
void pass_turn(std::atomic<std::uint32_t>& word) {
  word.fetch_add(1, std::memory_order_acq_rel);
  futex(word, FUTEX_WAKE, INT_MAX);
}

char letter(int index, int at) { return static_cast<char>('a' + (index * 7 + at) % 26); }

class Client {
 public:
  Client(Desk* desk, const int* pipes, const int* eventfds)
      : desk_(*desk), pipes_(pipes), eventfds_(eventfds) {
    null_ = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  }
  void run() {
    for (;;) {
      wait_until(desk_.turn, true);
      for (int k = 0; k < desk_.count; ++k) {
        if (desk_.actions[k].act == Act::kQuit) return pass_turn(desk_.turn);
        if (!does(desk_.actions[k]) && desk_.wrong == 0) desk_.wrong = errno == 0 ? -1 : errno;
      }
      pass_turn(desk_.turn);
    }
  }

 private:
  bool does(const Action& it) {
    errno = 0;
    const std::uint64_t one = 1;
    switch (it.act) {
      case Act::kConnect: return (near_[it.index] = connect_to(it.a)) >= 0;
      case Act::kWrite: return writes(near_[it.index], it.index, it.a);
      case Act::kRead: return reads(near_[it.index], it.index, it.a);
      case Act::kShut: return ::shutdown(near_[it.index], SHUT_WR) == 0;
      case Act::kClose: return ::close(near_[it.index]) == 0;
      case Act::kPing:
        for (int k = 0; k < it.a; ++k) {
          if (!writes(near_[it.index], it.index, it.b) || !reads(near_[it.index], it.index, it.b))
            return false;
        }
        return true;
      case Act::kVisit: return visits(it);
      case Act::kPipe: return ::write(pipes_[2 * it.index + 1], "p", 1) == 1;
      case Act::kEventfd: return ::write(eventfds_[it.index], &one, sizeof one) == sizeof one;
      case Act::kLog: return ::write(null_, "line\n", 5) == 5;
      case Act::kQuit: break;
    }
    return false;
  }
  static int connect_to(int port) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = loopback(static_cast<std::uint16_t>(port));
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? fd
                                                                                           : -1;
  }
  static bool writes(int fd, int index, int bytes) {
    std::string text;
    for (int k = 0; k < bytes; ++k) text += letter(index, k);
    return ::send(fd, text.data(), text.size(), MSG_NOSIGNAL) == bytes;
  }
  static bool reads(int fd, int index, int bytes) {
    std::string text(static_cast<std::size_t>(bytes), 0);
    for (int got = 0; got < bytes;) {
      const ssize_t n = ::read(fd, text.data() + got, text.size() - static_cast<std::size_t>(got));
      if (n <= 0) return false;
      got += static_cast<int>(n);
    }
    for (int k = 0; k < bytes; ++k) {
      if (text[static_cast<std::size_t>(k)] != letter(index, k)) return false;
    }
    return true;
  }
  /// A connection of its own, for a few words. One byte says which.
  static bool visits(const Action& it) {
    const int fd = connect_to(it.a);
    bool good = fd >= 0;
    for (int k = 0; good && k < it.b; ++k) good = writes(fd, 0, 10 + k) && reads(fd, 0, 10 + k);
    return ::close(fd) == 0 && good;
  }

  Desk& desk_;
  const int *pipes_, *eventfds_;
  int null_ = -1;
  int near_[kMostSources] = {};
};

// --- what can be waited for ----------------------------------------------------------------------

enum class Kind { kWarm, kFresh, kPipe, kEventfd, kTimer, kListener };
constexpr const char* kKindNames[] = {"warm", "fresh", "pipe", "eventfd", "timer", "listener"};

struct Source {
  Kind kind = Kind::kWarm;
  int index = 0;   ///< among all
  int plain = 0;   ///< of pipes and eventfds
  int client = 0;  ///< the client that has the other end
  int fd = -1;
  int set = 0;
  std::uint32_t events = 0;  ///< as it is asked for; 0: not in a set
  bool over = false;         ///< its other end has been shut, or closed
  bool closed = false;
  bool used = false;  ///< one that is to be fresh may move at its next calls
  int due = 0;        ///< bytes to be read
  bool is_socket() const { return kind == Kind::kWarm || kind == Kind::kFresh; }
  std::string name() const {
    return std::string(kKindNames[static_cast<int>(kind)]) + std::to_string(index);
  }
};

/// Without the interposer: has it come?
bool kernel_has(int fd, int timeout_ms) {
  pollfd one{fd, POLLIN, 0};
#if defined(__x86_64__)
  long result;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(SYS_poll), "D"(&one), "S"(1), "d"(timeout_ms)
               : "rcx", "r11", "memory");
  return result > 0;
#else
  ::usleep(500);
  (void)one;
  (void)timeout_ms;
  return true;
#endif
}

std::string events_of(std::uint32_t events) {
  std::string text;
  const std::pair<std::uint32_t, const char*> names[] = {{EPOLLIN, "i"},    {EPOLLOUT, "o"},
                                                         {EPOLLRDHUP, "r"}, {EPOLLHUP, "h"},
                                                         {EPOLLERR, "e"},   {EPOLLPRI, "p"}};
  for (const auto& [bit, name] : names) {
    if ((events & bit) != 0) text += name;
  }
  return text;
}

class World {
 public:
  World(std::uint64_t seed, bool at_once) : dice_(seed), at_once_(at_once) { start(); }
  void run(int steps);

 private:
  // clients
  void start();
  void tell(int client, std::vector<Action> actions, bool wait = true);
  void done(int client);
  void finish();

  // sources and sets
  void open_world();
  void close_world();
  void connect(Source& s);
  void warm_up(Source& s);
  void open_again(Source& s);
  int settle(const Source& s);
  std::string take(Source& s);
  void ask_for(Source& s, std::uint32_t events, int operation);
  std::uint32_t some_events(bool once);
  void flush();
  void check_moved();

  // what happens
  struct Deed {
    Source* source;
    int client;
    std::string text;
  };
  bool act_on(Source& s, std::vector<Deed>* deeds);
  std::vector<Deed> happen(int most, bool in_bursts);
  void say_order(const std::vector<Deed>& deeds,
                 const std::vector<std::pair<Source*, std::uint32_t>>& told, bool one_answer);

  // steps
  void look();
  void list_wait();
  void poll_wait();
  void sleepers();
  void servers();
  void spin();

  void say(const char* format, auto... values) {
    std::printf("%d.%d ", episode_, step_);
    std::printf(format, values...);
    std::printf("\n");
    std::fflush(stdout);
  }

  Dice dice_;
  bool at_once_;
  Shared* shared_ = nullptr;
  pid_t processes_[kClients] = {};
  std::thread thread_;
  int pipes_[2 * kPlain];
  int eventfds_[kPlain];
  int listener_ = -1;
  int port_ = 0;
  std::vector<Source> sources_;
  std::vector<int> sets_;
  int episode_ = 0, step_ = 0;
};

void World::start() {
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  check(memory != MAP_FAILED, "mmap");
  shared_ = new (memory) Shared;
  for (int k = 0; k < kPlain; ++k) {
    check(::pipe2(pipes_ + 2 * k, O_CLOEXEC | O_NONBLOCK) == 0, "pipe");
    eventfds_[k] = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  }
  for (int k = 0; k < kClients; ++k) {
    if (k == kClients - 1) {
      thread_ = std::thread([this, k] { Client(&shared_->desks[k], pipes_, eventfds_).run(); });
      break;
    }
    processes_[k] = ::fork();
    if (processes_[k] == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      Client(&shared_->desks[k], pipes_, eventfds_).run();
      std::exit(0);
    }
  }
}

void World::tell(int client, std::vector<Action> actions, bool wait) {
  Desk& desk = shared_->desks[client];
  desk.count = static_cast<int>(actions.size());
  std::copy(actions.begin(), actions.end(), desk.actions);
  pass_turn(desk.turn);
  if (wait) done(client);
}

void World::done(int client) {
  Desk& desk = shared_->desks[client];
  wait_until(desk.turn, false);
  if (desk.wrong != 0) {
    die("client " + std::to_string(client) + ": " +
        (desk.wrong < 0 ? "wrong bytes" : std::strerror(desk.wrong)));
  }
}

void World::finish() {
  for (int k = 0; k < kClients; ++k) {
    tell(k, {{Act::kQuit}});
    if (k == kClients - 1) {
      thread_.join();
      break;
    }
    int status = -1;
    ::waitpid(processes_[k], &status, 0);
    if (status != 0) die("a client ended badly");
  }
}

// --- sources and sets ----------------------------------------------------------------------------

void World::connect(Source& s) {
  tell(s.client, {{Act::kConnect, s.index, port_}});
  s.fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  check(s.fd >= 0, "accept");
  const int on = 1;
  ::setsockopt(s.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  s.over = s.closed = s.used = false;
  s.due = 0;
}

void World::warm_up(Source& s) {
  std::string text(100, 0);
  for (int round = 0; round < kWarmRounds; ++round) {
    tell(s.client, {{Act::kPing, s.index, 1, 100}}, false);
    for (std::size_t got = 0; got < text.size();) {
      const ssize_t n = ::read(s.fd, text.data() + got, text.size() - got);
      if (n > 0) got += static_cast<std::size_t>(n);
      if (n == 0 || (n < 0 && errno != EAGAIN)) check(false, "warm up");
      if (n < 0) ::sched_yield();
    }
    check(::send(s.fd, text.data(), text.size(), MSG_NOSIGNAL) == 100, "warm up");
    done(s.client);
  }
}

void World::open_again(Source& s) {
  if (s.events != 0) ask_for(s, 0, EPOLL_CTL_DEL);
  if (!s.closed) tell(s.client, {{Act::kClose, s.index}});
  ::close(s.fd);
  connect(s);
  if (s.kind == Kind::kWarm) warm_up(s);
}

// All warm connections have moved, where they can.
void World::check_moved() {
  if (std::getenv("LD_PRELOAD") == nullptr) return;
  int pipes = 0, warm = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code none;
    pipes += std::filesystem::read_symlink(entry, none) == "/memfd:clan-pipe (deleted)";
  }
  for (const Source& s : sources_) warm += s.kind == Kind::kWarm;
  if (pipes < warm)
    die("only " + std::to_string(pipes) + " of " + std::to_string(warm) +
        " connections have moved");
}

void World::open_world() {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address = loopback(0);
  check(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
        "bind");
  check(::listen(listener_, 64) == 0, "listen");
  socklen_t size = sizeof address;
  check(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0, "getsockname");
  port_ = ntohs(address.sin_port);
  auto add = [&](Kind kind, int plain = 0) {
    Source s;
    s.kind = kind;
    s.index = static_cast<int>(sources_.size());
    s.plain = plain;
    s.client = dice_.below(kClients);
    switch (kind) {
      case Kind::kWarm:
      case Kind::kFresh: connect(s); break;
      case Kind::kPipe: s.fd = pipes_[2 * plain]; break;
      case Kind::kEventfd: s.fd = eventfds_[plain]; break;
      case Kind::kTimer:
        s.fd = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
        break;
      case Kind::kListener: s.fd = listener_; break;
    }
    if (kind == Kind::kWarm) warm_up(s);
    sources_.push_back(s);
  };
  for (int k = 2 + dice_.below(5); k > 0; --k) add(Kind::kWarm);
  for (int k = dice_.below(3); k > 0; --k) add(Kind::kFresh);
  for (int k = dice_.below(kPlain); k > 0; --k) add(Kind::kPipe, k);
  for (int k = dice_.below(kPlain); k > 0; --k) add(Kind::kEventfd, k);
  if (dice_.one_in(2)) add(Kind::kTimer);
  if (dice_.one_in(2)) add(Kind::kListener);
  for (int k = 1 + dice_.below(3); k > 0; --k) sets_.push_back(::epoll_create1(EPOLL_CLOEXEC));
  std::string text;
  for (const Source& s : sources_) text += " " + s.name() + "/" + std::to_string(s.client);
  say("%zu sets,%s", sets_.size(), text.c_str());
  check_moved();
}

void World::close_world() {
  for (Source& s : sources_) {
    if (s.is_socket() && !s.closed) tell(s.client, {{Act::kClose, s.index}});
    if (s.kind != Kind::kPipe && s.kind != Kind::kEventfd && s.kind != Kind::kListener)
      ::close(s.fd);
  }
  for (const int set : sets_) ::close(set);
  ::close(listener_);
  sources_.clear();
  sets_.clear();
}

std::uint32_t World::some_events(bool once) {
  std::uint32_t events = EPOLLIN;
  const int kind = once ? 1 + dice_.below(2) : dice_.below(3);
  if (kind == 1) events |= EPOLLET;
  if (kind == 2) events |= EPOLLONESHOT;
  if (dice_.one_in(4)) events |= EPOLLRDHUP;
  if (kind == 1 && !once && dice_.one_in(4)) events |= EPOLLOUT;
  return events;
}

void World::ask_for(Source& s, std::uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = static_cast<std::uint64_t>(s.index);
  check(::epoll_ctl(sets_[static_cast<std::size_t>(s.set)], operation, s.fd, &event) == 0,
        "epoll_ctl");
  s.events = operation == EPOLL_CTL_DEL ? 0 : events;
}

/// Takes all that is there; what it was.
std::string World::take(Source& s) {
  std::uint64_t number = 0;
  switch (s.kind) {
    case Kind::kWarm:
    case Kind::kFresh: {
      int got = 0;
      char bytes[4096];
      for (;;) {
        const ssize_t n = ::read(s.fd, bytes, sizeof bytes);
        if (n == 0) return std::to_string(got) + " end";
        if (n < 0)
          return std::to_string(got) +
                 (errno == EAGAIN ? "" : std::string(" ") + std::strerror(errno));
        got += static_cast<int>(n);
      }
    }
    case Kind::kPipe: {
      char bytes[64];
      const ssize_t n = ::read(s.fd, bytes, sizeof bytes);
      return std::to_string(n);
    }
    case Kind::kEventfd:
    case Kind::kTimer: {
      const ssize_t n = ::read(s.fd, &number, sizeof number);
      return n == 8 ? std::to_string(number) : "-1";
    }
    case Kind::kListener: {
      int count = 0;
      for (int fd = -1; (fd = ::accept4(s.fd, nullptr, nullptr, SOCK_CLOEXEC)) >= 0; ++count)
        ::close(fd);
      return std::to_string(count);
    }
  }
  return "";
}

/// Bytes of connections that have not moved may be under way. Answers how many sources have
/// something.
int World::settle(const Source& s) {
  // A connection in shared memory wakes the kernel only where somebody sleeps.
  const bool may_have_moved = s.kind == Kind::kWarm || at_once_;
  if (s.is_socket() && may_have_moved && std::getenv("LD_PRELOAD") != nullptr) {
    // Whether its end is TCP's is not known here.
    return at_once_ && s.over && kernel_has(s.fd, 20) ? 1 : 0;
  }
  return kernel_has(s.fd, 1000) ? 1 : 0;
}

/// Nothing is there, and no set remembers that something was.
void World::flush() {
  for (Source& s : sources_) {
    (void)take(s);
    if (s.over || (s.kind == Kind::kFresh && s.used)) open_again(s);
    s.due = 0;
  }
  epoll_event events[kMostSources];
  for (const int set : sets_) (void)::epoll_wait(set, events, kMostSources, 0);
}

// --- what happens --------------------------------------------------------------------------------

/// One thing that makes a source ready; and says it. False: nothing that fits.
bool World::act_on(Source& s, std::vector<Deed>* deeds) {
  if (s.over) return false;
  s.used = true;
  Action action;
  int client = s.client;
  std::string text = s.name();
  switch (s.kind) {
    case Kind::kWarm:
    case Kind::kFresh: {
      const int how = dice_.below(16);
      action = {Act::kWrite, s.index, static_cast<int>(dice_.size(600)), 0};
      if (how == 0) action.act = Act::kShut;
      if (how == 1) action.act = Act::kClose;
      if (how > 1) {
        s.due += action.a;
        text += "+" + std::to_string(action.a);
      } else {
        s.over = true;
        s.closed = how == 1;
        text += how == 1 ? " closed" : " shut";
      }
      break;
    }
    case Kind::kPipe:
      action = {Act::kPipe, s.plain};
      client = dice_.below(kClients);
      break;
    case Kind::kEventfd:
      action = {Act::kEventfd, s.plain};
      client = dice_.below(kClients);
      break;
    case Kind::kTimer: {
      const itimerspec at_once{{0, 0}, {0, 1}};
      check(::timerfd_settime(s.fd, 0, &at_once, nullptr) == 0, "timerfd_settime");
      deeds->push_back({&s, -1, text});
      return true;
    }
    case Kind::kListener:
      action = {Act::kVisit, 0, port_, 0};
      client = dice_.below(kClients);
      break;
  }
  tell(client, {action});
  deeds->push_back({&s, client, text + "/" + std::to_string(client)});
  return true;
}

/// Some sources become ready, each once, in an order of their own.
std::vector<World::Deed> World::happen(int most, bool settles) {
  std::vector<std::size_t> order(sources_.size());
  for (std::size_t k = 0; k < order.size(); ++k) order[k] = k;
  for (std::size_t k = order.size(); k > 1; --k) {
    std::swap(order[k - 1], order[static_cast<std::size_t>(dice_.below(static_cast<int>(k)))]);
  }
  std::vector<Deed> deeds;
  const int count = 1 + dice_.below(most);
  for (const std::size_t k : order) {
    if (static_cast<int>(deeds.size()) >= count) break;
    if (!act_on(sources_[k], &deeds)) continue;
    if (settles) (void)settle(sources_[k]);
  }
  return deeds;
}

/// The order in which sources were first reported, as far as it is known.
void World::say_order(const std::vector<Deed>& deeds,
                      const std::vector<std::pair<Source*, std::uint32_t>>& told, bool one_answer) {
  std::string text[3];
  // The end of one whose client may never have sent by shared memory may be TCP's to tell, and its
  // place that of a plain one: of these only their own order is known.
  auto is_either = [this](const Source& s) { return at_once_ && s.kind == Kind::kFresh && s.over; };
  auto is_plain = [this](const Source& s) {
    return !(s.kind == Kind::kWarm || (at_once_ && s.kind == Kind::kFresh));
  };
  for (const auto& [source, events] : told) {
    const int kind = is_either(*source) ? 2 : is_plain(*source) ? 1 : 0;
    text[kind] += " " + source->name() + ":" + events_of(events);
  }
  std::string order;
  for (const auto& [source, events] : told) order += " " + source->name();
  // The order of several clients' plain and moved descriptors is not known, nor that of several
  // plain ones.
  int clients = 0;
  for (int k = -1; k < kClients; ++k) {
    clients += std::any_of(deeds.begin(), deeds.end(), [k](const Deed& d) { return d.client == k; })
                   ? 1
                   : 0;
  }
  const auto plain =
      std::count_if(deeds.begin(), deeds.end(), [&](const Deed& d) { return is_plain(*d.source); });
  const bool known = one_answer && plain <= 1 && clients <= 1 && text[2].empty();
  say("told%s |%s |%s%s%s", text[0].c_str(), text[1].c_str(), text[2].c_str(),
      known ? " in order" : "", known ? order.c_str() : "");
}

// --- steps ---------------------------------------------------------------------------------------

/// Things happen; then the set is asked, with room for all or for a few.
void World::list_wait() {
  for (Source& s : sources_) {
    if (s.events != 0 && dice_.one_in(3)) ask_for(s, 0, EPOLL_CTL_DEL);
    if (s.events != 0) continue;
    s.set = dice_.below(static_cast<int>(sets_.size()));
    ask_for(s, some_events(false), EPOLL_CTL_ADD);
  }
  flush();
  for (Source& s : sources_) {
    if (s.events == 0) ask_for(s, some_events(false), EPOLL_CTL_ADD);
    if ((s.events & (EPOLLONESHOT | EPOLLET)) != 0) ask_for(s, s.events, EPOLL_CTL_MOD);
  }
  epoll_event events[kMostSources];
  // what has room is reported by edge
  for (const int set : sets_) (void)::epoll_wait(set, events, kMostSources, 0);
  for (Source& s : sources_) {
    if ((s.events & EPOLLONESHOT) != 0) ask_for(s, s.events, EPOLL_CTL_MOD);
  }
  const std::vector<Deed> deeds = happen(8, true);
  std::string text;
  for (const Deed& d : deeds) text += " " + d.text;
  say("list%s", text.c_str());
  const int sizes[] = {1, 2, 3, 8, kMostSources, kMostSources};
  for (std::size_t k = 0; k < sets_.size(); ++k) {
    const int most = sizes[dice_.below(6)];
    int ready = 0;
    for (const Deed& d : deeds) ready += d.source->set == static_cast<int>(k) ? 1 : 0;
    const bool one_answer = most >= ready;
    const int timeout = ready > 0 && dice_.one_in(3) ? -1 : dice_.one_in(3) ? 3 : 0;
    std::vector<std::pair<Source*, std::uint32_t>> told;
    std::map<Source*, int> times;
    const int calls = one_answer ? 1 : 2 * ((ready + most - 1) / most) + 2;
    for (int call = 0; call < calls; ++call) {
      const int n = ::epoll_wait(sets_[k], events, most, call == 0 ? timeout : 0);
      check(n >= 0, "epoll_wait");
      for (int e = 0; e < n; ++e) {
        Source* s = &sources_[events[e].data.u64];
        if (++times[s] == 1) told.emplace_back(s, std::uint32_t{events[e].events});
        if (times[s] > 1 && (s->events & (EPOLLET | EPOLLONESHOT)) != 0)
          say("%s again", s->name().c_str());
      }
    }
    if (ready > 0 || !told.empty()) say_order(deeds, told, one_answer);
  }
  text.clear();
  for (Source& s : sources_) text += " " + take(s);
  say("taken%s", text.c_str());
}

/// poll and select, of everything.
void World::poll_wait() {
  flush();
  const std::vector<Deed> deeds = happen(6, true);
  std::string text;
  for (const Deed& d : deeds) text += " " + d.text;
  std::vector<pollfd> polled;
  for (const Source& s : sources_) polled.push_back({s.fd, POLLIN | POLLRDHUP, 0});
  const int timeout = dice_.one_in(2) ? 0 : 1000;
  const bool selects = dice_.one_in(2);
  text += selects ? " select" : " poll";
  if (selects) {
    fd_set in;
    FD_ZERO(&in);
    int top = 0;
    for (const Source& s : sources_) {
      FD_SET(s.fd, &in);
      top = std::max(top, s.fd);
    }
    timeval limit{timeout / 1000, 0};
    text += " " + std::to_string(::select(top + 1, &in, nullptr, nullptr, &limit));
    for (const Source& s : sources_) {
      if (FD_ISSET(s.fd, &in)) text += " " + s.name();
    }
  } else {
    text += " " + std::to_string(::poll(polled.data(), polled.size(), timeout));
    for (std::size_t k = 0; k < polled.size(); ++k) {
      if (polled[k].revents != 0) {
        text += " " + sources_[k].name() + ":" +
                events_of(static_cast<std::uint32_t>(polled[k].revents));
      }
    }
  }
  for (Source& s : sources_) text += " " + take(s);
  say("%s", text.c_str() + 1);
}

bool sleeps(pid_t thread) {
  char path[64], text[512] = {};
  std::snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t n = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  const char* at = n > 0 ? std::strrchr(text, ')') : nullptr;
  return at != nullptr && at[2] == 'S';
}

bool comes_true(const std::function<bool()>& what) {
  for (int k = 0; k < kHangSeconds * 5000; ++k) {
    if (what()) return true;
    ::usleep(200);
  }
  return false;
}

/// Threads asleep in sets, by some way; things happen, and sources are asked for anew. Each is
/// reported once.
void World::sleepers() {
  flush();
  for (Source& s : sources_) {
    if (s.events != 0) ask_for(s, 0, EPOLL_CTL_DEL);
  }
  for (Source& s : sources_) {
    s.set = dice_.below(static_cast<int>(sets_.size()));
    if (dice_.one_in(4)) continue;  // is asked for later
    ask_for(s, some_events(true), EPOLL_CTL_ADD);
  }
  const int rounds = 1 + dice_.below(6);
  const int threads = 1 + dice_.below(3);
  struct Told {
    int times = 0, taken = 0;
    bool ended = false;
  };
  std::map<int, Told> told;
  std::mutex mutex;
  std::atomic<bool> over{false};
  std::vector<pid_t> ids(static_cast<std::size_t>(threads));
  std::vector<int> outer;
  bool by_sets = false;  // sockets that go back to TCP just now may wake a second thread
  std::vector<std::thread> pollers;
  const int stop = ::eventfd(0, EFD_CLOEXEC);
  for (int t = 0; t < threads; ++t) {
    // Each set has a thread at least.
    const auto set = static_cast<std::size_t>(t) % sets_.size();
    outer.push_back(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = kMostSources;
    check(::epoll_ctl(outer.back(), EPOLL_CTL_ADD, stop, &event) == 0, "epoll_ctl");
    // Sockets of sets that are waited for themselves go back to TCP: not in most stories.
    const int way = dice_.one_in(8) ? dice_.below(2) : 2;
    by_sets |= way != 2;
    const int most = 1 + dice_.below(4);
    // Every thread waits in all sets: in a set of sets, in a poll of them, or in one after the
    // other.
    for (const int each : sets_) {
      if (way != 0) break;
      ++event.data.u64;
      check(::epoll_ctl(outer.back(), EPOLL_CTL_ADD, each, &event) == 0, "epoll_ctl");
    }
    pollers.emplace_back([&, set, way, most, t] {
      ids[static_cast<std::size_t>(t)] = static_cast<pid_t>(::syscall(SYS_gettid));
      epoll_event events[kMostSources];
      while (!over.load()) {
        if (way == 0) {
          (void)::epoll_wait(outer[static_cast<std::size_t>(t)], events, 1, -1);
        } else if (way == 1) {
          std::vector<pollfd> polled;
          for (const int each : sets_) polled.push_back({each, POLLIN, 0});
          polled.push_back({stop, POLLIN, 0});
          (void)::poll(polled.data(), polled.size(), -1);
        } else if (sets_.size() == 1 && !over.load()) {
          // asleep below
        } else {
          (void)::epoll_wait(outer[static_cast<std::size_t>(t)], events, kMostSources, 5);
        }
        for (std::size_t k = 0; k < sets_.size(); ++k) {
          const auto at = (set + k) % sets_.size();
          const int n =
              ::epoll_wait(sets_[at], events, most, way == 2 && sets_.size() == 1 ? 100 : 0);
          for (int e = 0; e < n; ++e) {
            Source& s = sources_[events[e].data.u64];
            const std::lock_guard guard(mutex);
            const std::string what = take(s);
            Told& here = told[s.index];
            ++here.times;
            here.taken += std::atoi(what.c_str());
            here.ended |= what.find("end") != std::string::npos;
            if ((s.events & EPOLLONESHOT) != 0 && !here.ended) ask_for(s, s.events, EPOLL_CTL_MOD);
          }
        }
      }
    });
  }
  for (int round = 0; round < rounds; ++round) {
    if (dice_.one_in(2)) {
      for (const pid_t& id : ids) (void)comes_true([&] { return id != 0 && sleeps(id); });
    }
    {
      const std::lock_guard guard(mutex);
      told.clear();
    }
    std::vector<Deed> deeds;
    std::string text;
    std::vector<std::size_t> acted;
    const int count = 1 + dice_.below(5);
    for (int k = 0; k < count; ++k) {
      const auto at = static_cast<std::size_t>(dice_.below(static_cast<int>(sources_.size())));
      Source& s = sources_[at];
      if (std::find(acted.begin(), acted.end(), at) != acted.end() || s.over) continue;
      acted.push_back(at);
      const int how = dice_.below(6);
      std::unique_lock guard(mutex);
      if (s.events == 0) {
        // Asked for while threads sleep, before or after it is ready.
        if (how < 3 && act_on(s, &deeds)) {
          (void)settle(s);
          ask_for(s, some_events(true), EPOLL_CTL_ADD);
          text += " " + deeds.back().text + " added";
          continue;
        }
        ask_for(s, some_events(true), EPOLL_CTL_ADD);
        text += " added";
      } else if (how == 0) {
        ask_for(s, s.events, EPOLL_CTL_MOD);
        text += " asked";
      } else if (how == 1) {
        const std::uint32_t events = s.events;
        ask_for(s, 0, EPOLL_CTL_DEL);
        ask_for(s, events, EPOLL_CTL_ADD);
        text += " anew";
      }
      guard.unlock();
      if (act_on(s, &deeds)) text += " " + deeds.back().text;
    }
    say("asleep %d%s", threads, text.c_str());
    const bool all = comes_true([&] {
      const std::lock_guard guard(mutex);
      for (const Deed& d : deeds) {
        const auto at = told.find(d.source->index);
        if (at == told.end()) return false;
        if (d.source->is_socket() && !d.source->over && at->second.taken < d.source->due)
          return false;
      }
      return true;
    });
    text.clear();
    const std::lock_guard guard(mutex);
    for (const Deed& d : deeds) {
      Source& s = *d.source;
      const auto at = told.find(s.index);
      if (at == told.end()) {
        text += " " + s.name() + " NOT TOLD";
        continue;
      }
      // The kernel wakes twice for an end, and may so tell twice.
      text += " " + s.name() +
              (at->second.ended ? " end"
               : by_sets        ? ""
                                : "*" + std::to_string(at->second.times)) +
              "=" + std::to_string(at->second.taken);
      s.due = 0;
    }
    say("woken%s", text.c_str());
    if (!all) break;
  }
  over.store(true);
  const std::uint64_t one = 1;
  check(::write(stop, &one, sizeof one) == 8, "stop");
  for (std::thread& t : pollers) t.join();
  for (const int set : outer) ::close(set);
  ::close(stop);
}

/// Pollers that share a set, and workers: clients ask on all connections at once, and make new
/// ones.
void World::servers() {
  flush();
  for (Source& s : sources_) {
    if (s.events != 0) ask_for(s, 0, EPOLL_CTL_DEL);
  }
  const int set = sets_[0];
  const int pollers = 1 + dice_.below(3), workers = dice_.below(3);
  const int most = dice_.one_in(2) ? 1 : 8;
  const int visits = dice_.below(4);
  // By edge, two threads may have one connection at once, and close it under each other.
  const bool one_shot = workers > 0 || (visits > 0 && pollers > 1) || dice_.one_in(2);
  const std::uint32_t how = EPOLLIN | EPOLLRDHUP | (one_shot ? EPOLLONESHOT : EPOLLET);
  std::mutex mutex;
  std::atomic<int> asked{0}, spurious{0}, noise{0}, visitors{0}, left{0};
  std::atomic<std::uint32_t> queued{0};
  std::vector<int> queue;
  std::atomic<bool> over{false};
  const int stop = ::eventfd(0, EFD_CLOEXEC);
  auto add = [&](int fd, std::uint32_t events, int operation = EPOLL_CTL_ADD) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = static_cast<std::uint64_t>(fd);
    return ::epoll_ctl(set, operation, fd, &event) == 0;
  };
  std::map<int, Source*> plain;
  for (Source& s : sources_) {
    s.set = 0;
    s.used = true;
    if (s.kind == Kind::kTimer) continue;
    if (!s.is_socket()) plain[s.fd] = &s;
    check(add(s.fd, s.is_socket() ? how : static_cast<std::uint32_t>(EPOLLIN)), "epoll_ctl");
  }
  if (plain.count(listener_) == 0) check(add(listener_, EPOLLIN), "epoll_ctl");
  check(add(stop, EPOLLIN), "epoll_ctl");
  auto serve = [&](int fd) {
    char bytes[4096];
    int got = 0;
    for (;;) {
      const ssize_t n = ::read(fd, bytes, sizeof bytes);
      if (n == 0) {
        ++left;
        ::close(fd);
        return;
      }
      if (n < 0) break;
      got += static_cast<int>(n);
      asked += static_cast<int>(n);
      if (::send(fd, bytes, static_cast<std::size_t>(n), MSG_NOSIGNAL) != n)
        die("an answer does not go");
    }
    if (got == 0) ++spurious;
    if (one_shot && !add(fd, how, EPOLL_CTL_MOD)) die("epoll_ctl MOD fails");
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < pollers; ++t) {
    threads.emplace_back([&] {
      epoll_event events[8];
      while (!over.load()) {
        const int n = ::epoll_wait(set, events, most, -1);
        for (int e = 0; e < n; ++e) {
          const int fd = static_cast<int>(events[e].data.u64);
          if (fd == stop) continue;
          if (fd == listener_) {
            for (int guest;
                 (guest = ::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;
                 ++visitors) {
              if (!add(guest, how)) die("epoll_ctl ADD fails");
            }
          } else if (const auto at = plain.find(fd); at != plain.end()) {
            const std::lock_guard guard(mutex);
            noise += std::max(0, std::atoi(take(*at->second).c_str()));
          } else if (workers == 0) {
            serve(fd);
          } else {
            const std::lock_guard guard(mutex);
            queue.push_back(fd);
            queued.fetch_add(1);
            futex(queued, FUTEX_WAKE, 1);
          }
        }
      }
    });
  }
  for (int t = 0; t < workers; ++t) {
    threads.emplace_back([&] {
      for (;;) {
        const std::uint32_t seen = queued.load();
        int fd = -1;
        {
          const std::lock_guard guard(mutex);
          if (!queue.empty()) {
            fd = queue.front();
            queue.erase(queue.begin());
          }
        }
        if (fd >= 0) {
          serve(fd);
        } else if (over.load()) {
          return;
        } else {
          futex(queued, FUTEX_WAIT, seen);
        }
      }
    });
  }
  // Each client asks on its connections in turn, and makes noise in between.
  std::vector<Action> tasks[kClients];
  int wanted = 0, sounds = 0;
  for (Source& s : sources_) {
    const int client = s.is_socket() ? s.client : dice_.below(kClients);
    if (tasks[client].size() == kMostActions) continue;
    if (s.is_socket()) {
      const int rounds = 1 + dice_.below(20);
      tasks[client].push_back({Act::kPing, s.index, rounds, static_cast<int>(dice_.size(3000))});
      wanted += rounds * tasks[client].back().b;
    } else if (s.kind == Kind::kPipe || s.kind == Kind::kEventfd) {
      tasks[client].push_back({s.kind == Kind::kPipe ? Act::kPipe : Act::kEventfd, s.plain});
      ++sounds;
    }
  }
  int guests = 0;
  for (auto& task : tasks) {
    for (int k = 0; k < visits && task.size() < kMostActions; ++k, ++guests) {
      const int words = dice_.below(12);
      task.push_back({Act::kVisit, 0, port_, words});
      for (int word = 0; word < words; ++word) wanted += 10 + word;
    }
    for (std::size_t k = task.size(); k > 1; --k) {
      std::swap(task[k - 1], task[static_cast<std::size_t>(dice_.below(static_cast<int>(k)))]);
    }
  }
  for (int k = 0; k < kClients; ++k) tell(k, tasks[k], false);
  const bool ended = comes_true([&] {
    for (int k = 0; k < kClients; ++k) {
      if (shared_->desks[k].turn.load() % 2 != 0) return false;
    }
    return asked.load() >= wanted && noise.load() >= sounds && left.load() >= guests;
  });
  if (!ended) {
    die("HANG: asked " + std::to_string(asked) + " of " + std::to_string(wanted) + ", noise " +
        std::to_string(noise) + " of " + std::to_string(sounds) + ", visitors " +
        std::to_string(visitors) + ", left " + std::to_string(left) + " of " +
        std::to_string(guests));
  }
  for (int k = 0; k < kClients; ++k) done(k);
  // A telling that is too many may come late.
  ::usleep(1000);
  over.store(true);
  const std::uint64_t one = 1;
  check(::write(stop, &one, sizeof one) == 8, "stop");
  queued.fetch_add(1);
  futex(queued, FUTEX_WAKE, INT_MAX);
  for (std::thread& t : threads) t.join();
  check(::epoll_ctl(set, EPOLL_CTL_DEL, stop, nullptr) == 0, "epoll_ctl");
  ::close(stop);
  if (std::none_of(plain.begin(), plain.end(),
                   [&](const auto& one_of) { return one_of.first == listener_; })) {
    check(::epoll_ctl(set, EPOLL_CTL_DEL, listener_, nullptr) == 0, "epoll_ctl");
  }
  for (Source& s : sources_) {
    if (s.kind != Kind::kTimer)
      check(::epoll_ctl(set, EPOLL_CTL_DEL, s.fd, nullptr) == 0, "epoll_ctl");
  }
  // By edge, what comes while a thread reads is read by it, and then reported to another.
  say("%d pollers %d workers %s: %d bytes of %d, %d told of nothing, noise %d, %d visitors, %d "
      "left",
      pollers, workers, one_shot ? "oneshot" : "edge", asked.load(), wanted,
      one_shot ? spurious.load() : 0, noise.load(), visitors.load(), left.load());
}

/// A client writes to one source and then to another while the set, or poll, is asked all the time:
/// a thread that learns of the second knows of the first.
void World::spin() {
  constexpr int kRounds = 12;
  flush();
  for (Source& s : sources_) {
    if (s.events != 0) ask_for(s, 0, EPOLL_CTL_DEL);
  }
  std::vector<Source*> of;
  for (Source& s : sources_) {
    if (s.kind != Kind::kTimer && s.kind != Kind::kListener) of.push_back(&s);
  }
  if (of.size() < 2) return;
  Source* first = of[static_cast<std::size_t>(dice_.below(static_cast<int>(of.size())))];
  Source* second = of[static_cast<std::size_t>(dice_.below(static_cast<int>(of.size())))];
  if (first == second ||
      (first->is_socket() && second->is_socket() && first->client != second->client))
    return;
  const int client = first->is_socket() ? first->client : second->client;
  if (client == kClients - 1) return;
  auto action = [](const Source& s) -> Action {
    if (s.kind == Kind::kPipe) return {Act::kPipe, s.plain};
    if (s.kind == Kind::kEventfd) return {Act::kEventfd, s.plain};
    return {Act::kWrite, s.index, 5, 0};
  };
  const int way = dice_.below(3), timeout = dice_.one_in(2) ? 0 : -1;
  first->set = second->set = 0;
  first->used = second->used = true;
  int wrong = 0;
  for (int round = 0; round < kRounds; ++round) {
    ask_for(*first, EPOLLIN, EPOLL_CTL_ADD);
    ask_for(*second, EPOLLIN, EPOLL_CTL_ADD);
    tell(client, {action(*first), action(*second)}, false);
    bool seen_first = false, seen_second = false;
    while (!seen_second) {
      if (way == 0) {
        epoll_event events[4];
        const int n = ::epoll_wait(sets_[0], events, 4, timeout);
        for (int e = 0; e < n; ++e) {
          const Source* s = &sources_[events[e].data.u64];
          seen_first |= s == first;
          seen_second |= s == second;
        }
      } else if (way == 1) {
        pollfd polled[2] = {{first->fd, POLLIN, 0}, {second->fd, POLLIN, 0}};
        (void)::poll(polled, 2, timeout);
        seen_first |= polled[0].revents != 0;
        seen_second |= polled[1].revents != 0;
      } else {
        fd_set in;
        FD_ZERO(&in);
        FD_SET(first->fd, &in);
        FD_SET(second->fd, &in);
        timeval none{0, 0};
        (void)::select(std::max(first->fd, second->fd) + 1, &in, nullptr, nullptr,
                       timeout == 0 ? &none : nullptr);
        seen_first |= FD_ISSET(first->fd, &in);
        seen_second |= FD_ISSET(second->fd, &in);
      }
    }
    wrong += seen_first ? 0 : 1;
    done(client);
    for (Source* s : {first, second}) {
      if (s->kind != Kind::kFresh) (void)settle(*s);  // it may have moved by now
      ask_for(*s, 0, EPOLL_CTL_DEL);
      (void)take(*s);
    }
  }
  // The kernel checks one after the other, and TCP may be late: see calls_order_test.cc.
  say("spin %s %s, way %d: %s", first->name().c_str(), second->name().c_str(), way,
      wrong > kRounds / 3 ? "OFTEN WITHOUT THE FIRST" : "with the first");
}

void World::run(int steps) {
  for (int left = steps; left > 0;) {
    ++episode_;
    step_ = 0;
    open_world();
    const int length = std::min(left, 3 + dice_.below(12));
    for (step_ = 1; step_ <= length; ++step_) {
      const int kind = dice_.below(10);
      if (kind < 4) {
        list_wait();
      } else if (kind < 5) {
        poll_wait();
      } else if (kind < 7) {
        sleepers();
      } else if (kind < 9) {
        servers();
      } else {
        spin();
      }
      // What a step leaves in the sets the next one finds anew.
      for (Source& s : sources_) {
        if (kind >= 5 && kind < 7 && s.events != 0) ask_for(s, 0, EPOLL_CTL_DEL);
        if (kind >= 5) s.events = 0;
      }
    }
    left -= length;
    flush();
    close_world();
  }
  finish();
  std::printf("done\n");
}

}  // namespace

int run_sets(std::uint64_t seed, int steps) {
  const char* at_once = std::getenv("CLAN_TEST_MOVE");
  World(seed, at_once != nullptr).run(steps);
  return 0;
}

}  // namespace clan::interpose_test
