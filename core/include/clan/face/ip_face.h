// `clan ip`'s page, for `clan ip status`, `clan ip down`, `clan stat` and tests: device, peers,
// counters. Atomics, written by that process.
#pragma once

#include <atomic>
#include <cstdint>

namespace clan::ip {

/// One peer. When it has gone, another one may take the row: the texts change, the counters go on.
struct IpRow {
  char address[64] = {};   ///< the first that it has
  char service[160] = {};  ///< where it is looked for
  std::atomic<std::uint32_t> up{0};
  std::atomic<std::uint32_t> offloads{0};  ///< TUN_F_*: what it takes
  std::atomic<std::uint32_t> mtu{0};
  std::atomic<std::uint64_t> sent{0}, sent_bytes{0}, received{0}, received_bytes{0};
  std::atomic<std::uint64_t> unreachable{0};  ///< packets to it while it could not be reached
  std::atomic<std::uint64_t> too_big{0};      ///< for its MTU, or of an offload that it lacks
  std::atomic<std::uint64_t> waits{0};        ///< times that its ring was full
  std::atomic<std::uint64_t> bad_source{0};   ///< packets from it of addresses that are not its own
  std::atomic<std::uint64_t> malformed{0};    ///< packets from it that no kernel should see
  std::atomic<std::uint64_t> refused{0};      ///< packets from it that this kernel did not take
};

/// The page; a memfd named kIpMemfdName.
struct IpPage {
  static constexpr std::uint64_t kMagic = 0x31'30'70'69'2d'6e'6c'63;  // "cln-ip01"
  static constexpr unsigned kRows = 255;
  std::uint64_t magic = kMagic;
  std::uint32_t pid = 0;
  char device[16] = {};
  char addresses[160] = {};
  std::uint32_t mtu = 0;
  std::uint32_t steered = 0;               ///< 1: each peer has a queue of the device
  std::atomic<std::uint32_t> rows{0};      ///< peers
  std::atomic<std::uint32_t> offloads{0};  ///< TUN_F_*: of the device now
  std::atomic<std::uint64_t> nobody{0};    ///< packets to addresses that no peer has
  std::atomic<std::uint64_t> groups{0};    ///< packets to several: multicast, broadcast, link-local
  std::atomic<std::uint64_t> strangers{
      0};  ///< connections left: not a peer's, or nonsense came by them
  IpRow row[kRows];
};
/// As /proc/PID/fd shows it: "/memfd:clan-ip (deleted)".
inline constexpr char kIpMemfdName[] = "clan-ip";

}  // namespace clan::ip
