// An actor of the differential test: does the socket calls that it gets and says what came of them.
// Started by the director (differential.cc), by itself (exec, posix_spawn) or by fork.
//
// What it says never contains a port, a process id, a descriptor or anything that depends on
// timing.
#include "differential_actor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "differential_calls.h"

namespace clan::interpose_test {

namespace {

volatile sig_atomic_t pipe_signals = 0;
volatile sig_atomic_t alarms = 0;
volatile sig_atomic_t io_signals = 0;

void count_signal(int number) {
  if (number == SIGPIPE) pipe_signals = pipe_signals + 1;
  if (number == SIGALRM) alarms = alarms + 1;
  if (number == SIGIO) io_signals = io_signals + 1;
}

void handle(int number, int flags) {
  struct sigaction action = {};
  action.sa_handler = count_signal;
  action.sa_flags = flags;
  ::sigaction(number, &action, nullptr);
}

/// An interval timer, so that a signal that came too early is followed by one in time.
void tick(int period_ms) {
  itimerval timer = {};
  timer.it_interval.tv_usec = timer.it_value.tv_usec = period_ms * 1000;
  ::setitimer(ITIMER_REAL, &timer, nullptr);
}

// --- addresses
// ------------------------------------------------------------------------------------

// family: 0 IPv4, 1 IPv6, 2 IPv4 client of a dual-stack server, 3 mapped client of an IPv4 server,
//         4 IPv4 on another local address
socklen_t address_of(int family, bool server, int port, sockaddr_storage* out) {
  *out = {};
  if (family == 1 || (family == 2 && server) || (family == 3 && !server)) {
    auto* six = reinterpret_cast<sockaddr_in6*>(out);
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(static_cast<std::uint16_t>(port));
    ::inet_pton(AF_INET6,
                family == 1   ? "::1"
                : family == 2 ? "::"
                              : "::ffff:127.0.0.1",
                &six->sin6_addr);
    return sizeof *six;
  }
  auto* four = reinterpret_cast<sockaddr_in*>(out);
  four->sin_family = AF_INET;
  four->sin_port = htons(static_cast<std::uint16_t>(port));
  ::inet_pton(AF_INET, family == 4 ? "127.0.0.2" : "127.0.0.1", &four->sin_addr);
  return sizeof *four;
}

std::string address_text(const sockaddr_storage& address, int* port) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (address.ss_family == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(&address);
    ::inet_ntop(AF_INET, &four->sin_addr, text, sizeof text);
    *port = ntohs(four->sin_port);
    return std::string("inet ") + text;
  }
  if (address.ss_family == AF_INET6) {
    const auto* six = reinterpret_cast<const sockaddr_in6*>(&address);
    ::inet_ntop(AF_INET6, &six->sin6_addr, text, sizeof text);
    *port = ntohs(six->sin6_port);
    return std::string("inet6 ") + text;
  }
  return Said() << "family " << std::to_string(address.ss_family);
}

// --- the actor
// ------------------------------------------------------------------------------------

class Actor {
 public:
  Actor(int control, int wings, int listener, int connection)
      : control_(control), wings_(wings), listener_(listener), fd_(connection) {}

  int run();

 private:
  std::string perform(const Command& command);
  std::string listen_at(const Command& command);
  std::string connect_to(const Command& command);
  std::string refused(const Command& command);
  std::string accept_by(const Command& command);
  std::string send_once(const Command& command);
  std::string receive_once(const Command& command);
  std::string transfer(const Command& command);
  std::string ping(const Command& command);
  std::string epoll_story(const Command& command);
  std::string epoll_check(const Command& command);
  std::string blocking(const Command& command);
  std::string timeout();
  std::string interrupt(const Command& command);
  std::string restarted(const Command& command);
  std::string low_water(const Command& command);
  std::string names();
  std::string options();
  std::string odd_calls();
  std::string duplicate(const Command& command);
  std::string fork_child(const Command& command);
  std::string spawn(const Command& command);
  std::string exec(const Command& command);
  std::string await(pid_t child);
  std::string pass(const Command& command);
  std::string take();
  std::string line_out(const Command& command);
  std::string line_in(const Command& command);
  std::string fill(const Command& command);
  std::string drain(const Command& command);
  std::string sigio_arm();
  std::string sigio_check();
  std::string urgent_out(const Command& command);
  std::string urgent_in(const Command& command);
  std::string close_by(const Command& command);
  std::string read_to_end(const Command& command, bool reset);
  std::string read_all(const Command& command);
  std::string write_dead(const Command& command);
  void send_forever(const Command& command);

  bool inherit_arguments(std::vector<std::string>* words);

  int control_;
  int wings_;
  int listener_;
  int fd_;
  int spare_ = -1;
  std::int64_t result_ = 0;
  std::unique_ptr<EpollOf> armed_;
};

std::string Actor::listen_at(const Command& command) {
  sockaddr_storage address;
  socklen_t length = address_of(command.how, true, 0, &address);
  listener_ = ::socket(address.ss_family, SOCK_STREAM, 0);
  const int off = 0;
  if (address.ss_family == AF_INET6) {
    ::setsockopt(listener_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), length) != 0)
    return Said() << "bind " << outcome(-1);
  if (::listen(listener_, 16) != 0) return Said() << "listen " << outcome(-1);
  length = sizeof address;
  ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
  int port = 0;
  const std::string text = address_text(address, &port);
  result_ = port;
  return Said() << "listen " << text;
}

std::string Actor::connect_to(const Command& command) {
  sockaddr_storage address;
  const socklen_t length = address_of(command.how, false, static_cast<int>(command.a), &address);
  const bool nonblocking = command.b != 0;
  fd_ = ::socket(address.ss_family, SOCK_STREAM | (nonblocking ? SOCK_NONBLOCK : 0), 0);
  Said said;
  said << "connect " << outcome(::connect(fd_, reinterpret_cast<sockaddr*>(&address), length));
  if (nonblocking) {
    int error = -1;
    socklen_t size = sizeof error;
    said << " then " << events_text(poll_one(fd_, POLLOUT, kWaitMs));
    ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
    said << " SO_ERROR " << std::to_string(error);
    said << " again " << outcome(::connect(fd_, reinterpret_cast<sockaddr*>(&address), length));
  }
  return said;
}

std::string Actor::refused(const Command& command) {
  sockaddr_storage address;
  socklen_t length = address_of(command.how, true, 0, &address);
  const int bound = ::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  (void)::bind(bound, reinterpret_cast<sockaddr*>(&address), length);
  length = sizeof address;
  ::getsockname(bound, reinterpret_cast<sockaddr*>(&address), &length);
  int port = 0;
  address_text(address, &port);
  length = address_of(command.how, false, port, &address);
  const int fd = ::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  Said said;
  said << "connect " << outcome(::connect(fd, reinterpret_cast<sockaddr*>(&address), length));
  char byte = 0;
  said << " send " << outcome(::send(fd, &byte, 1, MSG_NOSIGNAL));
  said << " recv " << outcome(::recv(fd, &byte, 1, 0));
  ::close(fd);
  ::close(bound);
  return said;
}

std::string Actor::accept_by(const Command& command) {
  sockaddr_storage address = {};
  socklen_t length = sizeof address;
  auto* const to = reinterpret_cast<sockaddr*>(&address);
  Said said;
  said << "accept";
  if (command.how == 2) said << " " << events_text(poll_one(listener_, POLLIN, kWaitMs));
  if (command.how == 3) {
    ::fcntl(listener_, F_SETFL, O_NONBLOCK);
    poll_one(listener_, POLLIN, kWaitMs);
  }
  fd_ = command.how == 1 ? ::accept4(listener_, to, &length, SOCK_CLOEXEC)
                         : ::accept(listener_, to, &length);
  if (fd_ < 0) return said << " " << outcome(-1);
  int port = 0;
  said << " from " << address_text(address, &port);
  result_ = port;
  if (command.how == 3) {
    said << " next " << outcome(::accept(listener_, nullptr, nullptr));
  }
  said << " close listener " << outcome(::close(listener_));
  listener_ = -1;
  return said;
}

std::string Actor::send_once(const Command& command) {
  Bytes data =
      make_pattern(command.key_out, command.offset[0], static_cast<std::size_t>(command.bytes[0]));
  const int before = pipe_signals;
  const int flags = takes_flags(command.how) ? static_cast<int>(command.a) : 0;
  Said detail;
  const int one = 1, zero = 0;
  const bool cork = command.b == 1;
  if (cork) ::setsockopt(fd_, IPPROTO_TCP, TCP_CORK, &one, sizeof one);
  result_ = send_by(fd_, command.how, data, flags, &detail);
  Said said;
  said << kSendNames[command.how] << " " << std::to_string(command.bytes[0]) << flags_text(flags)
       << " = " << outcome(result_) << detail;
  if (cork) {
    said << " uncork " << outcome(::setsockopt(fd_, IPPROTO_TCP, TCP_CORK, &zero, sizeof zero));
  }
  if (pipe_signals != before) said << " SIGPIPE x" << std::to_string(pipe_signals - before);
  return said;
}

std::string Actor::receive_once(const Command& command) {
  if (!settle(fd_, command.b)) return "recv: the bytes do not arrive";
  const int flags = receives_with_flags(command.how) ? static_cast<int>(command.a) : 0;
  Bytes data(static_cast<std::size_t>(command.bytes[1]));
  Said detail;
  result_ = receive_by(fd_, command.how, data, flags, &detail);
  Said said;
  said << kReceiveNames[command.how] << " " << std::to_string(command.bytes[1]) << flags_text(flags)
       << " = " << outcome(result_) << detail;
  if (result_ < 0) return said;
  data.resize(static_cast<std::size_t>(result_));
  // Each message of a peeking recvmmsg begins at the same byte.
  const bool overlaps = command.how == 5 && (flags & MSG_PEEK) != 0;
  if ((flags & MSG_TRUNC) == 0)
    said << (overlaps ? sum_of(data) : judge(data, command.key_in, command.offset[1]));
  if ((flags & MSG_PEEK) != 0) result_ = 0;
  return said;
}

std::string Actor::transfer(const Command& command) {
  Bytes out =
      make_pattern(command.key_out, command.offset[0], static_cast<std::size_t>(command.bytes[0]));
  Bytes in(static_cast<std::size_t>(command.bytes[1]));
  ssize_t sent = 0, received = 0;
  int send_error = 0;
  const auto send = [&] {
    sent = transfer_out(fd_, command.hows[0], out, static_cast<std::size_t>(command.chunk[0]));
    send_error = errno;
  };
  std::thread other;
  if (!out.empty() && !in.empty()) {
    other = std::thread(send);
  } else if (!out.empty()) {
    send();
  }
  Said said;
  said << "transfer";
  if (!in.empty()) {
    received = transfer_in(fd_, command.hows[1], in, static_cast<std::size_t>(command.chunk[1]));
    said << " in " << outcome(received) << judge(in, command.key_in, command.offset[1]);
  }
  if (other.joinable()) other.join();
  errno = send_error;
  if (!out.empty()) said << " out " << outcome(sent);
  return said;
}

std::string Actor::ping(const Command& command) {
  const auto size = static_cast<std::size_t>(command.bytes[0]);
  Bytes all;
  for (std::int64_t round = 0; round < command.a; ++round) {
    const auto skip = round * command.bytes[0];
    for (int half = 0; half < 2; ++half) {
      if ((half == 0) == (command.b == 1)) {
        Bytes data = make_pattern(command.key_out, command.offset[0] + skip, size);
        if (transfer_out(fd_, 0, data, size) < 0) return Said() << "ping send " << outcome(-1);
      } else {
        Bytes data(size);
        if (transfer_in(fd_, command.hows[1], data, size) < 0)
          return Said() << "ping receive " << outcome(-1);
        all.insert(all.end(), data.begin(), data.end());
      }
    }
  }
  return Said() << "ping " << std::to_string(command.a) << " x " << std::to_string(size)
                << judge(all, command.key_in, command.offset[1]);
}

std::string Actor::epoll_story(const Command& command) {
  if (!settle(fd_, command.b)) return "epoll: the bytes do not arrive";
  const std::uint32_t kinds[] = {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT, EPOLLIN};
  const std::uint32_t kind = kinds[command.how];
  EpollOf set(fd_, kind);
  const char* const names[] = {"level", "edge", "oneshot", "nested"};
  Said said;
  said << std::string("epoll ") << names[command.how];
  if (command.how == 3) {
    EpollOf outer(set.set(), EPOLLIN);
    said << " outer " << events_text(outer.wait(kWaitMs));
    said << " poll " << events_text(poll_one(set.set(), POLLIN, 0));
  }
  said << " " << events_text(set.wait(kWaitMs));
  said << ", " << events_text(set.wait(command.how == 1 || command.how == 2 ? 5 : 0, 2));
  set.arm_again(kind);
  said << ", modified " << events_text(set.wait(kWaitMs, 1));
  said << ", deleted " << outcome(::epoll_ctl(set.set(), EPOLL_CTL_DEL, fd_, nullptr));
  epoll_event none;
  said << " " << outcome(::epoll_wait(set.set(), &none, 1, 0));
  said << " again " << outcome(::epoll_ctl(set.set(), EPOLL_CTL_DEL, fd_, nullptr));
  return said;
}

std::string Actor::epoll_check(const Command& command) {
  if (!settle(fd_, command.b)) return "armed: the bytes do not arrive";
  Said said;
  said << "armed " << events_text(armed_->wait(kWaitMs));
  said << ", " << events_text(armed_->wait(3));
  Bytes data(static_cast<std::size_t>(command.b));
  said << ", recv " << outcome(::recv(fd_, data.data(), data.size(), 0))
       << judge(data, command.key_in, command.offset[1]);
  said << ", recv " << outcome(::recv(fd_, data.data(), data.size(), MSG_DONTWAIT));
  said << ", " << events_text(armed_->wait(3));
  armed_.reset();
  return said;
}

std::string Actor::blocking(const Command& command) {
  const bool on = command.how % 2 == 1;
  Said said;
  said << (command.how < 2 ? "fcntl " : "FIONBIO ");
  if (command.how < 2) {
    const int flags = ::fcntl(fd_, F_GETFL);
    said << outcome(::fcntl(fd_, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK));
  } else {
    int word = on ? 1 : 0;
    said << outcome(::ioctl(fd_, FIONBIO, &word));
  }
  const int flags = ::fcntl(fd_, F_GETFL);
  return said << ((flags & O_NONBLOCK) != 0 ? " non-blocking" : " blocking")
              << ((flags & O_ACCMODE) == O_RDWR ? " rdwr" : " ?");
}

std::string Actor::timeout() {
  timeval limit = {0, 30'000};
  Said said;
  said << "SO_RCVTIMEO "
       << outcome(::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
  char byte;
  const std::int64_t begin = now_ms();
  said << " recv " << outcome(::recv(fd_, &byte, 1, 0));
  said << (now_ms() - begin >= 25 ? " after a while" : " TOO EARLY");
  said << " WAITALL " << outcome(::recv(fd_, &byte, 1, MSG_WAITALL));
  said << " read " << outcome(::read(fd_, &byte, 1));
  limit = {0, 0};
  return said << " off "
              << outcome(::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
}

std::string Actor::interrupt(const Command& command) {
  handle(SIGALRM, 0);
  tick(15);
  char byte;
  const char* const names[] = {"recv", "poll", "epoll_wait", "select"};
  Said said;
  said << std::string("interrupted ") << names[command.how] << " ";
  if (command.how == 0) {
    said << outcome(::recv(fd_, &byte, 1, 0));
  } else {
    said << outcome(wait_one(fd_,
                             command.how == 1   ? 0
                             : command.how == 2 ? 4
                                                : 2,
                             POLLIN, kWaitMs));
  }
  tick(0);
  return said;
}

std::string Actor::restarted(const Command& command) {
  handle(SIGALRM, SA_RESTART);
  tick(2);
  Bytes data(static_cast<std::size_t>(command.bytes[1]));
  const ssize_t n = ::recv(fd_, data.data(), data.size(), MSG_WAITALL);
  Said said;
  said << "restarted recv " << outcome(n);
  tick(0);
  data.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return said << judge(data, command.key_in, command.offset[1]);
}

std::string Actor::low_water(const Command& command) {
  if (!settle(fd_, command.b)) return "low water: the bytes do not arrive";
  int mark = static_cast<int>(command.a);
  Said said;
  said << "SO_RCVLOWAT " << std::to_string(mark) << " "
       << outcome(::setsockopt(fd_, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
  socklen_t size = sizeof mark;
  said << "/" << outcome(::getsockopt(fd_, SOL_SOCKET, SO_RCVLOWAT, &mark, &size)) << "/"
       << std::to_string(mark) << " of " << std::to_string(command.b) << " poll "
       << events_text(poll_one(fd_, POLLIN, command.b >= command.a ? kWaitMs : 5));
  mark = 1;
  said << " off " << outcome(::setsockopt(fd_, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
  return said << " poll " << events_text(poll_one(fd_, POLLIN, command.b > 0 ? kWaitMs : 5));
}

std::string Actor::names() {
  sockaddr_storage mine = {}, theirs = {};
  socklen_t mine_length = sizeof mine, theirs_length = sizeof theirs;
  int my_port = 0, their_port = 0;
  Said said;
  said << "getsockname " +
              outcome(::getsockname(fd_, reinterpret_cast<sockaddr*>(&mine), &mine_length));
  said << " " << address_text(mine, &my_port) << " " << std::to_string(mine_length);
  said << " getpeername "
       << outcome(::getpeername(fd_, reinterpret_cast<sockaddr*>(&theirs), &theirs_length));
  said << " " << address_text(theirs, &their_port) << " " << std::to_string(theirs_length);
  result_ = std::int64_t{my_port} << 16 | their_port;
  return said;
}

std::string Actor::options() {
  Said said;
  said << "getsockopt";
  const struct {
    const char* name;
    int level, option;
  } kAsked[] = {{"SO_ERROR", SOL_SOCKET, SO_ERROR},
                {"SO_TYPE", SOL_SOCKET, SO_TYPE},
                {"SO_DOMAIN", SOL_SOCKET, SO_DOMAIN},
                {"SO_PROTOCOL", SOL_SOCKET, SO_PROTOCOL},
                {"SO_ACCEPTCONN", SOL_SOCKET, SO_ACCEPTCONN}};
  for (const auto& asked : kAsked) {
    int value = -1;
    socklen_t size = sizeof value;
    const int done = ::getsockopt(fd_, asked.level, asked.option, &value, &size);
    said << std::string(" ") << asked.name << " " << outcome(done) << "/" << std::to_string(value);
  }
  int value = 0;
  socklen_t size = sizeof value;
  ::getsockopt(fd_, IPPROTO_TCP, TCP_CORK, &value, &size);
  said << " TCP_CORK " << std::to_string(value);
  ::getsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &value, &size);
  int other = value != 0 ? 0 : 1;
  said << " TCP_NODELAY " << std::to_string(value) << " "
       << outcome(::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &other, sizeof other));
  ::getsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &value, &size);
  said << "/" << std::to_string(value);
  tcp_info info = {};
  size = sizeof info;
  said << " TCP_INFO " << outcome(::getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &size))
       << " state " << std::to_string(info.tcpi_state);
  struct stat status = {};
  said << " fstat " << outcome(::fstat(fd_, &status))
       << (S_ISSOCK(status.st_mode) ? " socket" : " NO SOCKET");
  return said;
}

/// What a socket refuses, or does nothing for. The receive queue is empty.
std::string Actor::odd_calls() {
  char byte = 'x';
  Said said;
  said << "lseek " << outcome(::lseek(fd_, 0, SEEK_CUR));
  said << " pread " << outcome(::pread(fd_, &byte, 1, 0)) << " pwrite "
       << outcome(::pwrite(fd_, &byte, 1, 0));
  said << " send 0 " << outcome(::send(fd_, &byte, 0, 0)) << " write 0 "
       << outcome(::write(fd_, &byte, 0));
  said << " read 0 " << outcome(::read(fd_, &byte, 0));
  said << " recv 0 " << outcome(::recv(fd_, &byte, 0, MSG_DONTWAIT));
  said << " recv " << outcome(::recv(fd_, &byte, 1, MSG_DONTWAIT));
  said << " peek " << outcome(::recv(fd_, &byte, 1, MSG_DONTWAIT | MSG_PEEK));
  said << " OOB " << outcome(::recv(fd_, &byte, 1, MSG_OOB));
  const std::vector<iovec> many(IOV_MAX + 1, iovec{&byte, 0});
  volatile int negative = -1;
  said << " writev 0 " << outcome(::writev(fd_, many.data(), 0));
  said << " writev -1 " << outcome(::writev(fd_, many.data(), negative));
  said << " readv too many " << outcome(::readv(fd_, many.data(), IOV_MAX + 1));
  msghdr empty = {};
  said << " sendmsg 0 " << outcome(::sendmsg(fd_, &empty, MSG_DONTWAIT));
  said << " shutdown 7 " << outcome(::shutdown(fd_, 7)) << " listen " << outcome(::listen(fd_, 1));
  said << " accept " << outcome(::accept(fd_, nullptr, nullptr));
  said << " sockatmark " << outcome(::sockatmark(fd_)) << " fsync " << outcome(::fsync(fd_));
  return said << " ftruncate " << outcome(::ftruncate(fd_, 0));
}

std::string Actor::duplicate(const Command& command) {
  const char* const names[kDuplicates] = {"dup",      "dup2", "dup3", "F_DUPFD", "F_DUPFD_CLOEXEC",
                                          "dup2 same"};
  int copy = -1;
  switch (command.how) {
    case 0: copy = ::dup(fd_); break;
    case 1: copy = ::dup2(fd_, ::open("/dev/null", O_RDONLY | O_CLOEXEC)); break;
    case 2: copy = ::dup3(fd_, ::open("/dev/null", O_RDONLY | O_CLOEXEC), O_CLOEXEC); break;
    case 3: copy = ::fcntl(fd_, F_DUPFD, 100); break;
    case 4: copy = ::fcntl(fd_, F_DUPFD_CLOEXEC, 300); break;
    default: break;
  }
  Said said;
  said << names[command.how];
  if (command.how == 5) return said << (::dup2(fd_, fd_) == fd_ ? " same" : " " + outcome(-1));
  if (copy < 0) return said << " " << outcome(-1);
  said << std::string((::fcntl(copy, F_GETFD) & FD_CLOEXEC) != 0 ? " CLOEXEC" : "");
  if (command.a != 0) {
    spare_ = fd_;
    said << " both";
  } else {
    said << " close " << outcome(::close(fd_));
  }
  fd_ = copy;
  return said;
}

// --- processes
// ------------------------------------------------------------------------------------

/// In the parent of a process that goes on in its place, until that has left.
std::string Actor::await(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ::_exit(1);
  return "back in the parent";
}

std::string Actor::fork_child(const Command& command) {
  const pid_t child = ::fork();
  if (child < 0) return Said() << "fork " << outcome(-1);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    result_ = ::getpid();
    return command.how == 1 ? "forked, the parent closes" : "forked";
  }
  if (command.how == 1) {
    ::close(fd_);
    fd_ = -1;
  }
  return await(child);
}

bool Actor::inherit_arguments(std::vector<std::string>* words) {
  for (const int fd : {control_, wings_, listener_, fd_}) {
    if (fd >= 0 && ::fcntl(fd, F_SETFD, 0) != 0) return false;
  }
  *words = {"interpose-differential",  "--actor",
            std::to_string(control_),  std::to_string(wings_),
            std::to_string(listener_), std::to_string(fd_)};
  return true;
}

/// The environment of what is started: with the preload the director had, or without any.
std::vector<char*> environment(bool without) {
  std::vector<char*> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "LD_PRELOAD=", 11) != 0) all.push_back(*entry);
  }
  static std::string preload;
  if (const char* had = std::getenv("DIFFERENTIAL_PRELOAD"); had != nullptr && !without) {
    preload = std::string("LD_PRELOAD=") + had;
    all.push_back(preload.data());
  }
  all.push_back(nullptr);
  return all;
}

std::string Actor::spawn(const Command& command) {
  std::vector<std::string> words;
  if (!inherit_arguments(&words)) return Said() << "fcntl " << outcome(-1);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::vector<char*> variables = environment(command.a != 0);
  pid_t child = -1;
  if (command.how == 0) {
    const int failed = ::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments.data(),
                                     variables.data());
    if (failed != 0) return Said() << "posix_spawn " << error_name(failed);
  } else {
    child = ::vfork();
    if (child == 0) {
      ::execve("/proc/self/exe", arguments.data(), variables.data());
      ::_exit(1);
    }
    if (child < 0) return Said() << "vfork " << outcome(-1);
  }
  return await(child);
}

std::string Actor::exec(const Command& command) {
  std::vector<std::string> words;
  if (!inherit_arguments(&words)) return Said() << "fcntl " << outcome(-1);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execve("/proc/self/exe", arguments.data(), environment(command.a != 0).data());
  return Said() << "execve " << outcome(-1);
}

std::string Actor::pass(const Command& command) {
  char byte = 'f';
  iovec piece = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd_, sizeof fd_);
  Said said;
  said << "SCM_RIGHTS " << outcome(::sendmsg(wings_, &message, 0));
  if (command.how == 0) {
    said << " close " << outcome(::close(fd_));
    fd_ = -1;
  }
  return said;
}

std::string Actor::take() {
  char byte = 0;
  iovec piece = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(wings_, &message, 0) != 1) return Said() << "take " << outcome(-1);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return "take nothing";
  std::memcpy(&fd_, CMSG_DATA(header), sizeof fd_);
  return "taken";
}

// --- stdio -------------------------------------------------------------------------------------

std::string Actor::line_out(const Command& command) {
  FILE* stream = ::fdopen(::dup(fd_), command.how == 0 ? "w" : "r+");
  if (stream == nullptr) return Said() << "fdopen " << outcome(-1);
  const int written =
      std::fprintf(stream, "%0*ld the line\n", static_cast<int>(command.bytes[0]) - 10,
                   static_cast<long>(command.offset[0]));
  result_ = written;
  Said said;
  said << "fprintf " << std::to_string(written) << " fflush " << outcome(std::fflush(stream));
  return said << " fclose " << outcome(std::fclose(stream));
}

std::string Actor::line_in(const Command& command) {
  if (!settle(fd_, command.b)) return "fgets: the bytes do not arrive";
  FILE* stream = ::fdopen(::dup(fd_), "r");
  if (stream == nullptr) return Said() << "fdopen " << outcome(-1);
  char line[1024] = "";
  Said said;
  said << (std::fgets(line, sizeof line, stream) != nullptr ? "fgets " : "fgets nothing ");
  said << std::to_string(std::strlen(line)) << " " << std::to_string(std::atol(line))
       << (std::strstr(line, " the line\n") != nullptr ? " whole" : " BROKEN");
  return said << " fclose " << outcome(std::fclose(stream));
}

// --- full buffers
// ---------------------------------------------------------------------------------

std::string Actor::fill(const Command& command) {
  const timeval limit = {0, 30'000}, none = {0, 0};
  if (command.how == 1) ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  const int flags = MSG_NOSIGNAL | (command.how == 0 ? MSG_DONTWAIT : 0);
  std::int64_t done = 0;
  Said said;
  said << "fill ";
  constexpr std::int64_t kMost = 256 << 20;
  for (;;) {
    const Bytes data = make_pattern(command.key_out, done, 30'000);
    const ssize_t n = ::send(fd_, data.data(), data.size(), flags);
    if (n > 0) done += n;
    if (n > 0 && done < kMost) continue;
    // What is on its way to the peer may make room once more.
    if (would_block(n) && done < kMost && poll_one(fd_, POLLOUT, 60) != 0) continue;
    if (done >= kMost) {
      said << "NO END";
    } else {
      said << outcome(n) << " then poll " << events_text(poll_one(fd_, POLLOUT, 0));
    }
    break;
  }
  if (command.how == 1) ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none);
  result_ = done;
  return said;
}

std::string Actor::drain(const Command& command) {
  std::int64_t done = 0;
  while (done < command.a) {
    Bytes data(static_cast<std::size_t>(std::min<std::int64_t>(command.a - done, 100'000)));
    if (transfer_in(fd_, command.hows[1], data, data.size()) < 0)
      return Said() << "drain " << outcome(-1);
    if (judge(data, command.key_in, done).find("WRONG") != std::string::npos)
      return "drain WRONG DATA";
    done += static_cast<std::int64_t>(data.size());
  }
  return "drained";
}

// --- signals, urgent data
// ---------------------------------------------------------------------------

std::string Actor::sigio_arm() {
  handle(SIGIO, SA_RESTART);
  io_signals = 0;
  Said said;
  said << "F_SETOWN " << outcome(::fcntl(fd_, F_SETOWN, ::getpid()));
  return said << " O_ASYNC " << outcome(::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) | O_ASYNC));
}

std::string Actor::sigio_check() {
  const std::int64_t until = now_ms() + kWaitMs;
  while (io_signals == 0 && now_ms() < until) ::usleep(500);
  Said said;
  said << (io_signals > 0 ? "SIGIO came" : "NO SIGIO");
  return said << " off " << outcome(::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) & ~O_ASYNC));
}

std::string Actor::urgent_out(const Command& command) {
  Bytes data = make_pattern(command.key_out, command.offset[0], 6);
  Said said;
  said << "urgent " << outcome(::send(fd_, data.data(), 3, 0));
  said << " " << outcome(::send(fd_, "!", 1, MSG_OOB));
  return said << " " << outcome(::send(fd_, data.data() + 3, 3, 0));
}

std::string Actor::urgent_in(const Command& command) {
  Said said;
  said << "poll " << events_text(poll_one(fd_, POLLPRI, kWaitMs));
  Bytes data(3);
  said << " in " << outcome(transfer_in(fd_, 0, data, 3))
       << judge(data, command.key_in, command.offset[1]);
  said << " mark " << outcome(::sockatmark(fd_));
  char byte = 0;
  said << " OOB " << outcome(::recv(fd_, &byte, 1, MSG_OOB)) << " " << std::string(1, byte);
  said << " again " << outcome(::recv(fd_, &byte, 1, MSG_OOB));
  data.assign(3, 0);
  said << " in " << outcome(transfer_in(fd_, 0, data, 3))
       << judge(data, command.key_in, command.offset[1] + 3);
  return said << " mark " << outcome(::sockatmark(fd_));
}

// --- ends
// -----------------------------------------------------------------------------------------

std::string Actor::close_by(const Command& command) {
  int done = -1;
  const linger hard = {1, 0};
  const int fd = fd_;
  fd_ = -1;
  if (command.how == 2) ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  if (command.how == 1) {
    done = ::close_range(static_cast<unsigned>(fd), static_cast<unsigned>(fd), 0);
  } else if (command.how == 3) {
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    done = ::dup2(null, fd) == fd ? 0 : -1;
    ::close(null);
    ::close(fd);
  } else {
    done = ::close(fd);
  }
  const char* const names[] = {"close ", "close_range ", "close with linger 0 ", "dup2 over "};
  return names[command.how] + outcome(done);
}

/// What is left, then the end: EOF or, with `reset`, ECONNRESET.
std::string Actor::read_to_end(const Command& command, bool reset) {
  const int first = reset ? POLLERR : POLLRDHUP;
  int seen = 0;
  for (const std::int64_t until = now_ms() + kWaitMs; (seen & first) == 0 && now_ms() < until;) {
    seen = poll_one(fd_, POLLRDHUP, 1000);
  }
  Said said;
  said << "end " << events_text(poll_one(fd_, POLLIN | POLLRDHUP, 0));
  said << " epoll " << events_text(wait_one(fd_, 4, POLLIN | POLLRDHUP, kWaitMs));
  Bytes data(static_cast<std::size_t>(command.b));
  if (command.b > 0) {
    said << " in " << outcome(transfer_in(fd_, command.hows[1], data, 65536))
         << judge(data, command.key_in, command.offset[1]);
  }
  char byte;
  said << " recv " << outcome(::recv(fd_, &byte, 1, 0));
  said << " recv " << outcome(::recv(fd_, &byte, 1, MSG_DONTWAIT)) << " read "
       << outcome(::read(fd_, &byte, 1));
  said << " select " << events_text(select_one(fd_, POLLIN, 0, false));
  int error = -1;
  socklen_t size = sizeof error;
  ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
  said << " SO_ERROR " << std::to_string(error);
  if (reset) {
    const int before = pipe_signals;
    said << " write " << outcome(::write(fd_, &byte, 1)) << " SIGPIPE x"
         << std::to_string(pipe_signals - before);
  }
  return said;
}

std::string Actor::read_all(const Command& command) {
  std::int64_t done = 0;
  for (;;) {
    Bytes data(20'000);
    const ssize_t n = ::recv(fd_, data.data(), data.size(), 0);
    if (would_block(n) && poll_one(fd_, POLLIN, kWaitMs) != 0) continue;
    if (n <= 0) return Said() << "read all, then " << outcome(n);
    data.resize(static_cast<std::size_t>(n));
    if (judge(data, command.key_in, command.offset[1] + done).find("WRONG") != std::string::npos) {
      return "read all WRONG DATA";
    }
    done += n;
  }
}

void Actor::send_forever(const Command& command) {
  std::int64_t done = 0;
  for (;;) {
    const Bytes data = make_pattern(command.key_out, command.offset[0] + done, 5000);
    const ssize_t n = ::send(fd_, data.data(), data.size(), MSG_NOSIGNAL);
    if (would_block(n)) poll_one(fd_, POLLOUT, kWaitMs);
    if (n > 0) done += n;
  }
}

std::string Actor::write_dead(const Command& command) {
  const int flags = command.how == 1 ? MSG_NOSIGNAL : 0;
  const int before = pipe_signals;
  Said said;
  said << "first " << outcome(::send(fd_, "a", 1, flags));
  poll_one(fd_, 0, kWaitMs);  // POLLHUP and POLLERR
  said << " " << events_text(poll_one(fd_, POLLIN | POLLOUT | POLLRDHUP, kWaitMs));
  said << " second " << outcome(::send(fd_, "b", 1, flags)) << " third "
       << outcome(::send(fd_, "c", 1, flags));
  char byte;
  said << " recv " << outcome(::recv(fd_, &byte, 1, MSG_DONTWAIT));
  return said << " SIGPIPE x" << std::to_string(pipe_signals - before);
}

std::string Actor::perform(const Command& command) {
  switch (command.op) {
    case Op::kListen: return listen_at(command);
    case Op::kConnect: return connect_to(command);
    case Op::kRefused: return refused(command);
    case Op::kAccept: return accept_by(command);
    case Op::kSend: return send_once(command);
    case Op::kReceive: return receive_once(command);
    case Op::kTransfer: return transfer(command);
    case Op::kPing: return ping(command);
    case Op::kWait: {
      const int seen =
          wait_one(fd_, command.how, static_cast<int>(command.b), static_cast<int>(command.a));
      return Said() << "wait " << (seen < 0 ? outcome(-1) : events_text(seen));
    }
    case Op::kEpollStory: return epoll_story(command);
    case Op::kEpollArm:
      armed_ = std::make_unique<EpollOf>(fd_, EPOLLIN | EPOLLET);
      return Said() << "arm " << events_text(armed_->wait(0));
    case Op::kEpollCheck: return epoll_check(command);
    case Op::kInput:
      return std::string("FIONREAD ") +
             (settle(fd_, command.b) ? std::to_string(command.b) : "NEVER");
    case Op::kOutput: {
      int left = -1;
      const std::int64_t until = now_ms() + kWaitMs;
      while (::ioctl(fd_, SIOCOUTQ, &left) == 0 && left != 0 && now_ms() < until) ::usleep(200);
      return Said() << "SIOCOUTQ " << std::to_string(left);
    }
    case Op::kBlocking: return blocking(command);
    case Op::kTimeout: return timeout();
    case Op::kInterrupt: return interrupt(command);
    case Op::kRestarted: return restarted(command);
    case Op::kLowWater: return low_water(command);
    case Op::kNames: return names();
    case Op::kOptions: return options();
    case Op::kOddCalls: return odd_calls();
    case Op::kDuplicate: return duplicate(command);
    case Op::kSwap: std::swap(fd_, spare_); return "swap";
    case Op::kCloseSpare: {
      const int done = ::close(spare_);
      spare_ = -1;
      return Said() << "close spare " << outcome(done);
    }
    case Op::kFork: return fork_child(command);
    case Op::kSpawn: return spawn(command);
    case Op::kExec: return exec(command);
    case Op::kPass: return pass(command);
    case Op::kTake: return take();
    case Op::kLineOut: return line_out(command);
    case Op::kLineIn: return line_in(command);
    case Op::kFill: return fill(command);
    case Op::kDrain: return drain(command);
    case Op::kSigioArm: return sigio_arm();
    case Op::kSigioCheck: return sigio_check();
    case Op::kUrgentOut: return urgent_out(command);
    case Op::kUrgentIn: return urgent_in(command);
    case Op::kShutdown:
      return Said() << "shutdown " << std::to_string(command.how) << " "
                    << outcome(::shutdown(fd_, command.how));
    case Op::kClose: return close_by(command);
    case Op::kReadToEnd: return read_to_end(command, false);
    case Op::kResetEnd: return read_to_end(command, true);
    case Op::kSendForever: send_forever(command); return "";
    case Op::kReadAll: return read_all(command);
    case Op::kWriteDead: return write_dead(command);
    case Op::kLeave:
    case Op::kDie:
    case Op::kQuit: break;
  }
  return "unknown command";
}

int Actor::run() {
  handle(SIGPIPE, SA_RESTART);
  Command command;
  for (;;) {
    const ssize_t n = ::recv(control_, &command, sizeof command, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof command || command.op == Op::kQuit) return n == sizeof command ? 0 : 1;
    if (command.op == Op::kDie) ::kill(::getpid(), SIGKILL);
    if (command.op == Op::kLeave) {
      if (command.how == 0) ::_exit(0);
      std::exit(0);
    }
    result_ = 0;
    const std::string said = perform(command);
    Reply reply;
    reply.result = result_;
    said.copy(reply.text, sizeof reply.text - 1);
    if (::send(control_, &reply, sizeof reply, MSG_NOSIGNAL) != sizeof reply) return 1;
  }
}

}  // namespace

int run_actor(int control, int wings, int listener, int connection) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  Reply hello;
  hello.result = ::getpid();
  std::strcpy(hello.text, "started");
  if (::send(control, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) return 1;
  return Actor(control, wings, listener, connection).run();
}

}  // namespace clan::interpose_test
