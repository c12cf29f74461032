// Rtnetlink: the kernel's way to a host: device, next hop, its Ethernet address. Asks by system
// calls that wait for no other host. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/fd.h"
#include "link/udp/xdp/xdp_frame.h"

namespace clan::udp {

struct NetDevice {
  int index = 0;
  MacAddress mac{};
  std::uint32_t mtu = 0;
  bool ethernet = false;  ///< and no loopback
  bool up = false;
  bool veth = false;
  std::uint32_t xdp_program = 0;  ///< the id of the one attached, 0: none
  bool xdp_native = false;        ///< it runs in the driver
};

struct Route {
  int device = 0;
  Ipv4 source{};  ///< of our packets
  Ipv4 next{};    ///< the host itself, or a router
};

class Rtnetlink {
 public:
  static Result<Rtnetlink> open();
  int fd() const { return socket_.get(); }

  std::optional<NetDevice> device(int index);
  /// How a datagram from `source` (0.0.0.0: any) would leave. Nothing: not by a plain device.
  std::optional<Route> route(const Ipv4& to, const Ipv4& source);
  /// Nothing: not known, or in doubt.
  std::optional<MacAddress> neighbour(int device, const Ipv4& next);
  /// Whether the kernel may make one of packets that arrive there (GRO). In doubt, yes.
  bool merges(int device);

 private:
  /// The kernel's answer to one question; empty: an error.
  std::span<const std::byte> ask(std::span<const std::byte> request);

  Fd socket_;
  std::uint32_t sequence_ = 0;
  alignas(8) std::byte answer_[16'384];
};

}  // namespace clan::udp
