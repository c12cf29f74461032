// The UDP transport beside a bare UDP socket and kernel TCP, over any addresses: ping-pong and
// bulk.
//
//   clan-net-transport serve PATH HOST:PORT         in one terminal (or network namespace)
//   clan-net-transport ping  PATH HOST:PORT [BYTES [SECONDS]]
//   clan-net-transport bulk  PATH HOST:PORT [BYTES [SECONDS]]
//   clan-net-transport crowd PATH HOST:PORT [BYTES [SECONDS [PEERS]]]       (clan only)
//
// PATH: udp and xdp (ping only), tcp, clan, clan-integrity, clan-encrypt, clan-xdp: both ends poll
// and never sleep; tcp-block: both sleep in the kernel. xdp: a bare AF_XDP socket at each end.
// Prints min, p50, p99 of round trips, or bytes per second as the receiver's acknowledgement of the
// last byte ends the clock, and this end's processor time. crowd: round trips alone, and beside
// PEERS peers, each with a socket of its own, that have been idle for two dozen seconds; it says
// "idle" then, and goes on when a line has come. The modes with keys take the pre-shared key from
// the file CLAN_KEY_FILE. A program, not a test: run it on a quiet machine (net.py does it all,
// with network namespaces).
#include "transport_bench.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bare_xdp_bench.h"
#include "clan/detail/clock.h"
#include "link/udp/io/socket_io.h"

namespace clan::udp {

void print_round_trips(std::vector<std::uint64_t>& ns) {
  if (ns.empty()) fail("no round trip");
  std::sort(ns.begin(), ns.end());
  std::printf("%zu round trips: min %.2f p50 %.2f p99 %.2f us\n", ns.size(),
              static_cast<double>(ns[0]) / 1e3, static_cast<double>(ns[ns.size() / 2]) / 1e3,
              static_cast<double>(ns[ns.size() * 99 / 100]) / 1e3);
}

}  // namespace clan::udp

namespace {

using namespace clan::udp;
using clan::monotonic_ns;

void print_processor_time() {
  rusage use;
  (void)::getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  std::printf("  %.2f s of processor, %.2f of it in the kernel\n",
              seconds(use.ru_utime) + seconds(use.ru_stime), seconds(use.ru_stime));
}

void print_rate(std::uint64_t bytes, std::uint64_t ns) {
  std::printf("%.3f GB/s (%.1f MB in %.2f s)\n",
              static_cast<double>(bytes) / static_cast<double>(ns),
              static_cast<double>(bytes) / 1e6, static_cast<double>(ns) / 1e9);
}

// --- sockets -------------------------------------------------------------------------------------

// Reads all of `bytes`, polling if `flags` say so. False: the end.
bool read_all(int fd, std::byte* to, std::size_t bytes, int flags) {
  while (bytes > 0) {
    const ssize_t n = ::recv(fd, to, bytes, flags);
    if (n > 0) {
      to += n;
      bytes -= static_cast<std::size_t>(n);
    } else if (n == 0 || errno != EAGAIN) {
      return false;
    }
  }
  return true;
}

bool write_all(int fd, const std::byte* from, std::size_t bytes, int flags) {
  while (bytes > 0) {
    const ssize_t n = ::send(fd, from, bytes, flags | MSG_NOSIGNAL);
    if (n > 0) {
      from += n;
      bytes -= static_cast<std::size_t>(n);
    } else if (errno != EAGAIN) {
      return false;
    }
  }
  return true;
}

int tcp_socket(const Job& o) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const int one = 1;
  const sockaddr_in address = kernel_address(o.address);
  const auto* a = reinterpret_cast<const sockaddr*>(&address);
  (void)::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (o.role == "serve") {
    if (::bind(fd, a, sizeof address) != 0 || ::listen(fd, 8) != 0) fail("listen");
    return fd;
  }
  if (::connect(fd, a, sizeof address) != 0) fail("connect");
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

// A request's first 16 bytes: the length of each message, and 0 for ping or the number of bytes for
// bulk.
void tcp_serve(const Job& o) {
  const int listener = tcp_socket(o);
  for (;;) {
    const int fd = ::accept(listener, nullptr, nullptr);
    const int one = 1;
    (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    std::uint64_t request[2];
    if (!read_all(fd, reinterpret_cast<std::byte*>(request), sizeof request, o.flags()))
      fail("request");
    std::vector<std::byte> buffer(std::max<std::size_t>(request[0], 1));
    std::uint64_t got = 0;
    while (read_all(fd, buffer.data(), buffer.size(), o.flags())) {
      got += buffer.size();
      if (request[1] == 0 ? !write_all(fd, buffer.data(), buffer.size(), o.flags())
                          : got >= request[1] && !write_all(fd, buffer.data(), 1, o.flags())) {
        break;
      }
    }
    ::close(fd);
  }
}

void tcp_run(const Job& o) {
  const int fd = tcp_socket(o);
  std::vector<std::byte> buffer(o.bytes);
  const bool ping = o.role == "ping";
  const std::uint64_t total =
      ping ? 0 : static_cast<std::uint64_t>(o.seconds * 1e9) / o.bytes * o.bytes;
  const std::uint64_t request[2] = {o.bytes, total};
  if (!write_all(fd, reinterpret_cast<const std::byte*>(request), sizeof request, o.flags()))
    fail("request");
  const std::uint64_t begin = monotonic_ns();
  if (!ping) {
    for (std::uint64_t sent = 0; sent < total; sent += o.bytes) {
      if (!write_all(fd, buffer.data(), o.bytes, o.flags())) fail("send");
    }
    if (!read_all(fd, buffer.data(), 1, o.flags())) fail("answer");
    print_rate(total, monotonic_ns() - begin);
    return;
  }
  std::vector<std::uint64_t> trips;
  for (std::uint64_t now = begin, end = begin + static_cast<std::uint64_t>(o.seconds * 1e9);
       now < end;) {
    if (!write_all(fd, buffer.data(), o.bytes, o.flags()) ||
        !read_all(fd, buffer.data(), o.bytes, o.flags()))
      fail("ping");
    const std::uint64_t then = std::exchange(now, monotonic_ns());
    trips.push_back(now - then);
  }
  print_round_trips(trips);
}

void udp_serve(const Job& o) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  const sockaddr_in address = kernel_address(o.address);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("bind");
  std::vector<std::byte> buffer(65'536);
  for (;;) {
    sockaddr_in from;
    socklen_t length = sizeof from;
    const ssize_t n = ::recvfrom(fd, buffer.data(), buffer.size(), MSG_DONTWAIT,
                                 reinterpret_cast<sockaddr*>(&from), &length);
    if (n > 0)
      (void)::sendto(fd, buffer.data(), static_cast<std::size_t>(n), 0,
                     reinterpret_cast<sockaddr*>(&from), length);
  }
}

void udp_ping(const Job& o) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  const sockaddr_in address = kernel_address(o.address);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    fail("connect");
  std::vector<std::byte> buffer(o.bytes);
  std::vector<std::uint64_t> trips;
  const std::uint64_t end = monotonic_ns() + static_cast<std::uint64_t>(o.seconds * 1e9);
  for (std::uint64_t now = monotonic_ns(); now < end;) {
    const std::uint64_t begin = now;
    (void)::send(fd, buffer.data(), o.bytes, 0);
    while (::recv(fd, buffer.data(), o.bytes, MSG_DONTWAIT) <= 0 &&
           monotonic_ns() - begin < kSecond / 10) {
    }
    now = monotonic_ns();
    trips.push_back(now - begin);
  }
  print_round_trips(trips);
}

// --- the transport -------------------------------------------------------------------------------

void clan_serve(const Job& o) {
  End end(open_io(o.address, o), o.path, 16 << 20);
  end.echo = true;
  for (;;) (void)end.pump->run(monotonic_ns());
}

void clan_run(const Job& o) {
  End end(open_io(SocketAddress{}, o), o.path, 16 << 20);
  connect(end, o);
  std::vector<std::byte> buffer(o.bytes);
  const std::uint64_t begin = monotonic_ns();
  const std::uint64_t until = begin + static_cast<std::uint64_t>(o.seconds * 1e9);
  if (o.role == "ping") {
    auto trips = round_trips(end, o, until, [] { return false; });
    print_round_trips(trips);
  } else {
    std::uint64_t posted = 0;
    for (std::uint64_t now = begin;
         (now < until || end.sent < posted) && end.connection != nullptr;) {
      if (now < until && posted - end.sent < std::max<std::size_t>(4, (4u << 20) / o.bytes)) {
        (void)end.endpoint->send(*end.connection, 3, {{}, buffer, false, true});
        ++posted;
      }
      (void)end.pump->run(now);
      now = monotonic_ns();
    }
    print_rate(posted * o.bytes, monotonic_ns() - begin);
  }
  if (end.connection == nullptr) return;
  const ConnectionCounters& c = end.connection->counters();
  std::printf(
      "  packets of %zu bytes, round trip %.0f us (least %.0f), window %.0f KB, %llu sent, %llu "
      "lost, %llu "
      "time-outs\n",
      end.connection->mtu().current(), static_cast<double>(end.connection->rtt().smoothed()) / 1e3,
      static_cast<double>(end.connection->rtt().least()) / 1e3,
      static_cast<double>(end.connection->congestion().window()) / 1024,
      static_cast<unsigned long long>(c.packets_sent), static_cast<unsigned long long>(c.lost),
      static_cast<unsigned long long>(c.timeouts));
  end.endpoint->close(*end.connection, 0, monotonic_ns());
  while (end.connection != nullptr && monotonic_ns() < until + kSecond)
    (void)end.pump->run(monotonic_ns());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(
        stderr,
        "usage: %s serve|ping|bulk|crowd udp|xdp|tcp|tcp-block|clan[-integrity|-encrypt|-xdp] "
        "HOST:PORT "
        "[BYTES [SECONDS [PEERS]]]\n",
        argv[0]);
    return 2;
  }
  Job o{argv[1], argv[2], {}, std::string(argv[1]) == "bulk" ? 1u << 20 : 64u, 2};
  auto address = parse_address(argv[3]);
  if (!address) fail(address.error().what);
  o.address = *address;
  if (argc > 4) o.bytes = std::strtoull(argv[4], nullptr, 10);
  if (argc > 5) o.seconds = std::strtod(argv[5], nullptr);
  if (argc > 6) o.peers = std::strtoull(argv[6], nullptr, 10);
  if (o.bytes == 0 || o.bytes > (8u << 20)) fail("BYTES: 1 to 8388608");
  if (o.role == "crowd") {
    if (!o.path.starts_with("clan")) fail("no such path");
    clan_crowd(o);
  } else if (o.path == "tcp" || o.path == "tcp-block") {
    o.role == "serve" ? tcp_serve(o) : tcp_run(o);
  } else if (o.path == "udp" && o.role != "bulk") {
    o.role == "serve" ? udp_serve(o) : udp_ping(o);
  } else if (o.path == "xdp" && o.role != "bulk" && o.bytes <= 1472) {
    if (o.role == "serve") serve_bare_xdp(o.address, o.bytes);
    auto trips = ping_bare_xdp(o.address, o.bytes, o.seconds);
    print_round_trips(trips);
  } else if (o.path.starts_with("clan")) {
    o.role == "serve" ? clan_serve(o) : clan_run(o);
  } else {
    fail("no such path");
  }
  print_processor_time();
  return 0;
}
