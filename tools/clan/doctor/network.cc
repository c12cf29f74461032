// `clan doctor`: how packets may leave for other hosts.
#include <clan/network.h>
#include <fmt/core.h>

#include "finding.h"

namespace clan::tool {

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
