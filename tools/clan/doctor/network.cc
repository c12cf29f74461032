// `clan doctor`: how packets may leave for other hosts.
#include <clan/face/network.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cstdint>

#include "../commands.h"
#include "finding.h"

namespace clan::tool {
namespace {

// A host on which nobody has the port says so once a second, to all that ask; two are needed.
constexpr std::int64_t kAnswerMs = 5000;

const char* protection(NetworkOptions::Mode mode) {
  switch (mode) {
    case NetworkOptions::Mode::kOff: return "neither checked nor encrypted";
    case NetworkOptions::Mode::kIntegrity: return "checked";
    case NetworkOptions::Mode::kEncrypt: break;
  }
  return "encrypted";
}

}  // namespace

Finding check_far_host(const std::string& host) {
  Finding f{.name = "far_host"};
  f.effect = fmt::format("connections and messages to {} go by TCP", host);
  ContextOptions options;
  options.network = network_settings();
  if (!options.network.enabled) {
    f.seen =
        "neither CLAN_KEY nor CLAN_NETWORK_MODE is set here: one names a key that both hosts have, "
        "the other says off where the wire is trusted";
    return f;
  }
  options.network.directory_port = 0;  // nothing is offered
  std::array<std::uint64_t, 1> trip{};
  auto context = Context::create(options);
  const auto path = context ? ping(*context, host_and_port(host), trip, 0, kAnswerMs)
                            : Result<PathValues>(context.error());
  if (!path) {
    f.seen = path.error().message();
    return f;
  }
  f.state = State::kOk;
  f.seen = fmt::format("CLAN answers there, in {:.0f} us, by packets of up to {} bytes, {}",
                       static_cast<double>(trip[0]) / 1e3, path->packet_bytes,
                       protection(options.network.mode));
  f.effect = fmt::format("`clan run --net`, and the other faces, can reach programs of {}", host);
  return f;
}

Finding check_tun() {
  Finding f{.name = "tun", .state = State::kOk};
  const Descriptor device(::open("/dev/net/tun", O_RDWR | O_CLOEXEC));
  f.seen = device.ok() ? "/dev/net/tun can be opened" : "/dev/net/tun: " + errno_text();
  f.effect = "`clan ip` makes network devices, with CAP_NET_ADMIN";
  if (device.ok()) return f;
  f.state = State::kAbsent;
  f.effect = "`clan ip` makes no network device";
  return f;
}

Finding check_network_port() {
  const std::uint16_t port = network_settings().directory_port;
  const auto owner = user_of_udp_port(port);
  Finding f{.name = "network_port", .state = State::kOk};
  f.effect =
      fmt::format("programs of this user under `clan run --net` are found at UDP port {}", port);
  if (!owner) {
    f.seen =
        fmt::format("UDP port {} of this host is free: the first program of a user has it", port);
  } else if (*owner == geteuid()) {
    f.seen = fmt::format("UDP port {} of this host belongs to this user", port);
  } else {
    f.state = State::kLimited;
    f.seen = fmt::format("UDP port {} of this host belongs to another user, {}", port, *owner);
    f.effect = fmt::format(
        "other hosts find connections of this user there if that is a CLAN program with the same "
        "key and mode; else give this user a port, CLAN_NETWORK_PORT, here and at the hosts that "
        "connect");
  }
  return f;
}

Finding check_af_xdp(const std::string& host) {
  const Status possible = xdp_possible(host);
  const std::string where = host.empty() ? "" : fmt::format(" to {}", host);
  Finding f{.name = "af_xdp"};
  if (possible) {
    f.state = State::kOk;
    f.seen =
        fmt::format("this process may have AF_XDP sockets{}",
                    host.empty() ? "" : fmt::format(", and packets{} leave by Ethernet", where));
    f.effect = fmt::format(
        "with CLAN_NETWORK_PACKETS=xdp or auto small packets{} go past the kernel's stack", where);
  } else {
    f.seen = possible.error().what;
    f.effect =
        fmt::format("packets{} go by UDP sockets, whatever CLAN_NETWORK_PACKETS says", where);
  }
  return f;
}

}  // namespace clan::tool
