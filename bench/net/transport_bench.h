// What the parts of clan-net-transport share: what is asked for, and an end of the transport.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "clan/detail/clock.h"
#include "link/udp/io/packet_io.h"
#include "link/udp/xdp/packet_choice.h"
#include "support/load.h"

namespace clan::udp {

using clan::bench::fail;

struct Job {
  std::string role, path;
  SocketAddress address;
  std::size_t bytes = 64;
  double seconds = 2;
  std::size_t peers = 1000;
  int flags() const { return path == "tcp-block" ? 0 : MSG_DONTWAIT; }
};

inline sockaddr_in kernel_address(const SocketAddress& a) {
  sockaddr_in s{};
  s.sin_family = AF_INET;
  s.sin_port = htons(a.port);
  std::memcpy(&s.sin_addr, a.ip.data() + 12, 4);
  return s;
}

/// One endpoint, one peer. `most`: bytes of a message that is not taken piece by piece.
struct End final : EndpointSink, MessageSink {
  End(std::unique_ptr<PacketIo> packets, const std::string& path, std::size_t most);
  int on_request(const SocketAddress&, std::span<const std::byte>, std::span<std::byte>,
                 std::size_t*) override {
    return 0;
  }
  void on_established(Connection& c, std::span<const std::byte>) override {
    connection = &c;
    c.user = this;
  }
  bool on_fragment(std::uint8_t, std::span<const std::byte>, std::uint32_t total,
                   std::uint32_t offset, std::span<const std::byte> bytes) override {
    if (total > memory.size()) return false;
    std::memcpy(memory.data() + offset, bytes.data(), bytes.size());
    return true;
  }
  void on_message(std::uint8_t channel, std::span<const std::byte>, std::uint32_t,
                  std::span<const std::byte> payload) override {
    ++messages;
    if (echo && channel == 0) (void)endpoint->send(*connection, 0, {{}, payload});
  }
  void on_sent(std::uint8_t, std::uint64_t) override { ++sent; }
  void on_down(Connection&, int err) override {
    connection = nullptr;
    if (!echo) std::printf("the connection ended: %s\n", std::strerror(err));
  }

  std::unique_ptr<Security> security;
  std::unique_ptr<PacketIo> io;
  std::unique_ptr<Endpoint> endpoint;
  std::unique_ptr<PacketPump> pump;
  Connection* connection = nullptr;
  std::vector<std::byte> memory;
  std::uint64_t messages = 0, sent = 0;
  bool echo = false;
};

std::unique_ptr<PacketIo> open_io(const SocketAddress& local, const Job& o);
void connect(End& end, const Job& o);

/// Round trips until then; `between` is called after each.
template <typename F>
std::vector<std::uint64_t> round_trips(End& end, const Job& o, std::uint64_t until, F&& between) {
  const std::vector<std::byte> buffer(o.bytes);
  std::vector<std::uint64_t> trips;
  for (std::uint64_t now = monotonic_ns(); now < until && end.connection != nullptr;) {
    const std::uint64_t then = now, messages = end.messages;
    (void)end.endpoint->send(*end.connection, 0, {{}, buffer});
    do {
      (void)end.pump->run(now);
      now = monotonic_ns();
    } while (end.messages == messages && now < until);
    if (end.messages != messages) trips.push_back(now - then);
    if (between()) now = monotonic_ns();
  }
  return trips;
}

/// Round trips alone, and beside idle peers.
void clan_crowd(const Job& o);

/// A ping-pong of two bare AF_XDP sockets, with nothing above them: what XdpIo is measured by. The
/// server answers messages of `bytes` and never ends; the client's round trips are ns.
[[noreturn]] void serve_bare_xdp(const SocketAddress& local, std::size_t bytes);
std::vector<std::uint64_t> ping_bare_xdp(const SocketAddress& to, std::size_t bytes,
                                         double seconds);

}  // namespace clan::udp
