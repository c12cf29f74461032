#include <array>
#include <optional>

#include "clan/detail/clock.h"
#include "link/udp/io/socket_io.h"
#include "link/udp/xdp/xdp_program.h"
#include "link/udp/xdp/xdp_socket.h"
#include "transport_bench.h"

namespace clan::udp {
namespace {

/// A bare AF_XDP socket at a port, as XdpIo makes it, and the UDP socket that holds the port.
struct BareXdp {
  explicit BareXdp(const SocketAddress& local) {
    auto opened = SocketIo::open(local, {});
    auto netlink = Rtnetlink::open();
    if (!opened || !netlink) fail("sockets");
    held = std::move(*opened);
    kernel = std::move(*netlink);
  }
  /// Takes and sends packets of `peer` from now on; it has to be a neighbour that is known.
  void begin(const SocketAddress& peer) {
    const auto route = kernel->route(ipv4_of(peer), {});
    const auto device = route ? kernel->device(route->device) : std::nullopt;
    const auto mac = route ? kernel->neighbour(route->device, route->next) : std::nullopt;
    if (!device || !mac) fail("no way to that host");
    auto made = XdpSocket::open(device->index);
    if (!made) fail(made.error().what);
    auto shared = XdpProgram::join(*kernel, device->index, XdpProgram::Where::kGeneric);
    if (!shared) fail(shared.error().what);
    socket = std::move(*made);
    program = std::move(*shared);
    const std::uint16_t port = held->local_address().port;
    if (!program->claim(port, route->source, socket->queue(), socket->fd())) fail("the port");
    header = FrameHeader(device->mac, *mac, route->source, port, ipv4_of(peer), peer.port);
  }
  void send(std::span<const std::byte> payload) {
    if (!socket->has_room(1)) return;
    const std::size_t frame = kFrameHeader + payload.size();
    header.write(socket->next_frame().first(frame), payload);
    socket->post(frame);
    (void)socket->push();
  }
  bool receive(std::span<std::byte> to) {
    std::span<std::byte> frame;
    socket->give_back();
    if (socket->take({&frame, 1}) == 0 || frame.size() < kFrameHeader + to.size()) return false;
    std::memcpy(to.data(), frame.data() + kFrameHeader, to.size());
    return true;
  }
  /// By the UDP socket: the end that sends first makes the kernels know each other.
  SocketAddress wait_for_one() const {
    std::array<Arrival, 8> arrivals;
    while (held->receive(arrivals) == 0) {
    }
    return arrivals[0].from;
  }

  std::unique_ptr<SocketIo> held;
  std::optional<Rtnetlink> kernel;
  std::unique_ptr<XdpSocket> socket;
  std::optional<XdpProgram> program;
  FrameHeader header;
};

}  // namespace

void serve_bare_xdp(const SocketAddress& address, std::size_t bytes) {
  SocketAddress local;
  local.port = address.port;
  BareXdp end(local);
  const SocketAddress peer = end.wait_for_one();
  end.begin(peer);
  std::byte one{};
  (void)end.held->send({peer, 1, 1}, {&one, 1});
  std::vector<std::byte> buffer(bytes);
  for (;;) {
    if (end.receive(buffer)) end.send(buffer);
  }
}

std::vector<std::uint64_t> ping_bare_xdp(const SocketAddress& to, std::size_t bytes,
                                         double seconds) {
  BareXdp end({});
  std::byte one{};
  (void)end.held->send({to, 1, 1}, {&one, 1});
  (void)end.wait_for_one();
  end.begin(to);
  std::vector<std::byte> buffer(bytes);
  std::vector<std::uint64_t> trips;
  const std::uint64_t until = monotonic_ns() + static_cast<std::uint64_t>(seconds * 1e9);
  for (std::uint64_t now = monotonic_ns(); now < until;) {
    const std::uint64_t begin = now;
    end.send(buffer);
    while (!end.receive(buffer) && monotonic_ns() - begin < kSecond / 10) {
    }
    now = monotonic_ns();
    trips.push_back(now - begin);
  }
  return trips;
}

}  // namespace clan::udp
