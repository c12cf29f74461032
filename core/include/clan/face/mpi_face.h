// mca_btl_clan.so's page, for `clan stat` and tests: the ranks that a rank has met and what went to
// them. Atomics, written by that process.
#pragma once

#include <atomic>
#include <cstdint>

namespace clan::mpi {

/// One rank that this one sends to.
struct MpiPeer {
  std::atomic<std::uint64_t> name{0};      ///< job << 32 | rank, 0: no such peer
  std::atomic<std::uint64_t> messages{0};  ///< records sent: a message, or a piece of one
  std::atomic<std::uint64_t> bytes{0};     ///< of these, headers of Open MPI counted
  std::atomic<std::uint64_t> puts{0}, put_bytes{0}, gets{0}, get_bytes{0}, atomics{0};
};

/// The page; a memfd named kMpiMemfdName, whose counters never decrease.
struct MpiPage {
  static constexpr std::uint64_t kMagic = 0x31'31'69'70'6d'2d'6e'63;  // "cn-mpi11"
  static constexpr unsigned kPeers = 256;
  std::uint64_t magic = kMagic;
  std::uint32_t pid = 0;
  std::atomic<std::uint32_t> peers{0};     ///< rows in use; further peers share the last one
  std::atomic<std::uint64_t> name{0};      ///< of this rank
  std::atomic<std::uint64_t> queued{0};    ///< records that had to wait for room
  std::atomic<std::uint64_t> nonsense{0};  ///< records that no rank of this version sends
  MpiPeer peer[kPeers];
};
/// As /proc/PID/fd shows it: "/memfd:clan-mpi (deleted)".
constexpr char kMpiMemfdName[] = "clan-mpi";

}  // namespace clan::mpi
