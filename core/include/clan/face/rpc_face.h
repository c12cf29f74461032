// libclanrpc.so's page, for `clan stat` and tests: how a process's remote calls travelled. Atomics,
// written by that process.
#pragma once

#include <atomic>
#include <cstdint>

namespace clan {

/// The page; a memfd named kRpcMemfdName, whose counters never decrease.
struct RpcPage {
  static constexpr std::uint64_t kMagic = 0x323163'70722d6e63;  // "cn-rpc12"
  std::uint64_t magic = kMagic;
  std::uint32_t pid = 0;
  std::uint32_t reserved = 0;
  // As a client.
  std::atomic<std::uint64_t> handles{0};  ///< made by any of libtirpc's functions
  std::atomic<std::uint64_t> met{0};      ///< servers that calls go to over CLAN
  std::atomic<std::uint64_t> calls_clan{0};
  std::atomic<std::uint64_t> calls_stock{0};  ///< by tcp, udp or a local socket
  std::atomic<std::uint64_t> lost{0};         ///< servers that went while a call was under way
  // As a server.
  std::atomic<std::uint64_t> clients{0};      ///< that have come over CLAN
  std::atomic<std::uint64_t> served_clan{0};  ///< calls
  /// to calls by CLAN that went by the socket (forked servers)
  std::atomic<std::uint64_t> replies_stock{0};
  std::atomic<std::uint64_t> hostile{0};  ///< messages that made no sense
  std::atomic<std::uint64_t> sleeps{0};
  // Those with other hosts, by the UDP link.
  std::atomic<std::uint64_t> calls_far{0};
  std::atomic<std::uint64_t> served_far{0};
};

/// As /proc/PID/fd shows it: "/memfd:clan-rpc (deleted)".
constexpr char kRpcMemfdName[] = "clan-rpc";

}  // namespace clan
