// clan-gateway's page, for `clan stat`, `clan gateway reload` and tests. Atomics that it writes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace clan::gateway {

/// The page; a memfd named kGatewayMemfdName. Counters never decrease, but for what there is now.
struct GatewayPage {
  static constexpr std::uint64_t kMagic = 0x32'30'77'67'2d'6e'6c'63;  // "cln-gw02"
  using Count = std::atomic<std::uint64_t>;
  std::uint64_t magic = kMagic;
  std::uint32_t pid = 0;
  std::atomic<std::uint32_t> draining{0};  ///< it has been replaced, or ends
  Count connections{0};                    ///< now
  Count accepted{0}, ended{0}, reset{0};   ///< `reset`: by an end, a time-out or a limit
  Count bytes_in{0}, bytes_out{0};         ///< to targets, and back
  Count refused_source{0};                 ///< one address has too many; not of accept-proxy
  Count refused_header{0};                 ///< no PROXY header, or a wrong one
  Count refused_target{0};                 ///< no target could be reached
  Count failed_connects{0};                ///< of targets, checks among them
  Count accept_errors{0};                  ///< no descriptors or memory
  Count reloads{0}, failed_reloads{0};
  struct Target {
    char name[104] = "";
    std::atomic<std::uint32_t> works{1};
    Count connections{0}, served{0}, failures{0};
  };
  static constexpr std::size_t kMostTargets = 64;
  std::atomic<std::uint32_t> targets_known{0};
  std::atomic<std::uint16_t> replaced{0};       ///< by another program, which serves
  std::atomic<std::uint16_t> failed_starts{0};  ///< of such, also among failed_reloads
  Target targets[kMostTargets];                 ///< the first ones
};
/// As /proc/PID/fd shows it: "/memfd:clan-gateway (deleted)".
constexpr char kGatewayMemfdName[] = "clan-gateway";

}  // namespace clan::gateway
