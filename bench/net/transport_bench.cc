// The UDP transport beside a bare UDP socket, a bare AF_XDP socket and kernel TCP. net.py runs it.
//
//   clan-net-transport serve|ping|bulk|crowd PATH HOST:PORT [BYTES [SECONDS [PEERS]]]
//
// PATH: udp and xdp (ping only), tcp, clan, clan-integrity, clan-encrypt, clan-xdp: both ends poll;
// tcp-block: both sleep in the kernel. crowd (clan only): round trips alone, and beside PEERS
// peers, each with a socket of its own, that have been idle for two dozen seconds; it says "idle"
// then, and goes on when a line has come. Modes with keys take the key from the file CLAN_KEY_FILE.
#include "transport_bench.h"

#include "requests.h"

namespace {

using namespace clan::udp;
using clan::monotonic_ns;
using clan::bench::print_round_trips;

// --- sockets -------------------------------------------------------------------------------------

/// A socket that polls or sleeps, as requests.h has it.
struct SocketEnd {
  int fd, flags;

  bool read(std::span<std::byte> to) {
    while (!to.empty()) {
      const ssize_t n = ::recv(fd, to.data(), to.size(), flags);
      if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
      if (n > 0) to = to.subspan(static_cast<std::size_t>(n));
    }
    return true;
  }
  bool write(std::span<const std::byte> from) {
    while (!from.empty()) {
      const ssize_t n = ::send(fd, from.data(), from.size(), flags | MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN) return false;
      if (n > 0) from = from.subspan(static_cast<std::size_t>(n));
    }
    return true;
  }
};

void tcp_serve(const Job& o) {
  const int listener = clan::bench::listen_at(kernel_address(o.address), 8);
  for (;;) {
    SocketEnd end{clan::bench::no_delay(::accept(listener, nullptr, nullptr)), o.flags()};
    clan::bench::Request request;
    if (!end.read(std::as_writable_bytes(std::span(&request, 1)))) fail("request");
    serve_request(end, request);
    ::close(end.fd);
  }
}

void tcp_run(const Job& o) {
  SocketEnd end{clan::bench::connect_to(kernel_address(o.address)), o.flags()};
  const auto request = clan::bench::Request::of(o.role, o.bytes, o.seconds);
  if (!end.write(std::as_bytes(std::span(&request, 1)))) fail("request");
  clan::bench::run_request(end, o.role, o.bytes, o.seconds);
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
  print_round_trips(std::move(trips));
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
    print_round_trips(round_trips(end, o, until, [] { return false; }));
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
    clan::bench::print_rate(posted * o.bytes, begin);
  }
  if (end.connection == nullptr) return;
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
    print_round_trips(ping_bare_xdp(o.address, o.bytes, o.seconds));
  } else if (o.path.starts_with("clan")) {
    o.role == "serve" ? clan_serve(o) : clan_run(o);
  } else {
    fail("no such path");
  }
  clan::bench::print_processor_time();
  return 0;
}
