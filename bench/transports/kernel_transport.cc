#include "transports/kernel_transport.h"

#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "support/clock.h"

namespace clan::bench {

namespace {

std::string because(const char* what) { return fmt::format("{}: {}", what, std::strerror(errno)); }

int domain_of(Family f) { return f == Family::kTcp ? AF_INET : AF_UNIX; }
int type_of(Family f) { return f == Family::kUnixSeqpacket ? SOCK_SEQPACKET : SOCK_STREAM; }

/// A listener at an address the kernel chose: a free loopback port, or an abstract name.
Fd listen_anywhere(Family family, int backlog) {
  Fd fd(socket(domain_of(family), type_of(family) | SOCK_CLOEXEC, 0));
  sockaddr_storage address{};
  socklen_t length = sizeof(sa_family_t);  // AF_UNIX with only a family: autobind
  address.ss_family = static_cast<sa_family_t>(domain_of(family));
  if (family == Family::kTcp) {
    auto* in = reinterpret_cast<sockaddr_in*>(&address);
    in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    length = sizeof *in;
  }
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(fd.get(), backlog) != 0)
    return {};
  return fd;
}

Fd connect_to(int listener, Family family) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  Fd fd(socket(domain_of(family), type_of(family) | SOCK_CLOEXEC, 0));
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) return {};
  return fd;
}

void tune(int fd, Family family) {
  if (family != Family::kTcp) return;
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // Reset instead of TIME_WAIT: thousands of connections per sample would use up the ports.
  const linger reset{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
}

/// A seqpacket record has to fit the send buffer. Force it when we may; answer whether it fits.
bool fit_record(int fd, std::size_t bytes) {
  const int wanted = static_cast<int>(bytes + 4096);
  if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &wanted, sizeof wanted) != 0) {
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &wanted, sizeof wanted);
  }
  int got = 0;
  socklen_t length = sizeof got;
  getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &got, &length);
  return static_cast<std::size_t>(got) > bytes + 512;
}

/// A connection of one end, tuned; empty where there is none.
Fd open_end(const Fd& listener, Side side, Family family) {
  Fd fd = side == Side::kClient ? connect_to(listener.get(), family)
                                : Fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (fd) tune(fd.get(), family);
  return fd;
}

bool allow_fds(std::size_t count) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= count) return true;
  limit.rlim_cur = count;
  if (limit.rlim_max < count) limit.rlim_max = count;  // works for root only
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

}  // namespace

std::string kernel_name(Family family, Wait wait) {
  std::string name = family == Family::kTcp          ? "tcp"
                     : family == Family::kUnixStream ? "unix"
                                                     : "seqpacket";
  return wait == Wait::kPoll ? name + "-poll" : name;
}

KernelEnd::KernelEnd(Fd fd, Family family, Wait wait)
    : fd_(std::move(fd)),
      keeps_records_(family == Family::kUnixSeqpacket),
      flags_(MSG_NOSIGNAL | (wait == Wait::kPoll ? MSG_DONTWAIT : 0)) {}

template <class Call>
bool KernelEnd::move(std::size_t bytes, Call call) {
  Spinner spin;
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t n = call(done);
    if (n > 0) {
      done += static_cast<std::size_t>(n);
      if (keeps_records_) return done == bytes;
    } else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      spin();
    } else {
      return false;
    }
  }
  return true;
}

bool KernelEnd::send(std::span<const std::byte> message) {
  return move(message.size(), [&](std::size_t done) {
    return ::send(fd_.get(), message.data() + done, message.size() - done, flags_);
  });
}

bool KernelEnd::recv(std::span<std::byte> message) {
  return move(message.size(), [&](std::size_t done) {
    return ::recv(fd_.get(), message.data() + done, message.size() - done, flags_);
  });
}

std::string KernelTransport::prepare(std::size_t bytes) {
  if (family_ == Family::kTcp) {
    listener_ = listen_anywhere(family_, 16);
    return listener_ ? "" : because("listen on loopback");
  }
  int ends[2];
  if (socketpair(AF_UNIX, type_of(family_) | SOCK_CLOEXEC, 0, ends) != 0) {
    return because("socketpair");
  }
  for (int i = 0; i < 2; ++i) {
    pair_[i].reset(ends[i]);
    if (family_ == Family::kUnixSeqpacket && !fit_record(ends[i], bytes)) {
      return fmt::format("a record of {} bytes does not fit the socket's buffer", bytes);
    }
  }
  return "";
}

std::optional<KernelEnd> KernelTransport::open(Side side) {
  if (family_ != Family::kTcp) {
    const int mine = side == Side::kClient ? 0 : 1;
    pair_[1 - mine].reset();
    return KernelEnd(std::move(pair_[mine]), family_, wait_);
  }
  Fd fd = open_end(listener_, side, family_);
  if (!fd) return std::nullopt;
  return KernelEnd(std::move(fd), family_, wait_);
}

KernelHub::KernelHub(std::vector<Fd> connections, Fd epoll, Family family, Wait wait)
    : epoll_(std::move(epoll)), wait_(wait) {
  ends_.reserve(connections.size());
  for (Fd& fd : connections) ends_.emplace_back(std::move(fd), family, Wait::kBlock);
}

std::size_t KernelHub::wait(std::span<std::uint32_t> ready) {
  std::array<epoll_event, 64> events;
  const int room = static_cast<int>(std::min(ready.size(), events.size()));
  Spinner spin;
  for (;;) {
    const int n = epoll_wait(epoll_.get(), events.data(), room, wait_ == Wait::kBlock ? -1 : 0);
    if (n < 0 && errno != EINTR) return 0;
    const auto count = static_cast<std::size_t>(std::max(n, 0));
    for (std::size_t i = 0; i < count; ++i) ready[i] = events[i].data.u32;
    if (count > 0) return count;
    spin();
  }
}

std::string KernelHubTransport::prepare(std::size_t connections) {
  constexpr std::size_t kOtherFds = 64;
  if (!allow_fds(connections + kOtherFds)) {
    return fmt::format("{} connections need more file descriptors than RLIMIT_NOFILE allows",
                       connections);
  }
  listener_ = listen_anywhere(family_, 4096);
  return listener_ ? "" : because("listen");
}

std::optional<KernelHub> KernelHubTransport::open(Side side, std::size_t connections) {
  Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return std::nullopt;
  std::vector<Fd> fds;
  fds.reserve(connections);
  // Connections are made one after the other, so the n-th connect is the n-th accept.
  for (std::uint32_t i = 0; i < connections; ++i) {
    Fd fd = open_end(listener_, side, family_);
    if (!fd) return std::nullopt;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = i;
    if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd.get(), &event) != 0) return std::nullopt;
    fds.push_back(std::move(fd));
  }
  return KernelHub(std::move(fds), std::move(epoll), family_, wait_);
}

}  // namespace clan::bench
