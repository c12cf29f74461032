// libvipl.so's page, for `clan stat` and tests: a process's connected VIs and their counters.
// Atomics, written by that process.
#pragma once

#include <atomic>
#include <cstdint>

namespace clan::via {

/// One VI that is or was connected. Its counters never decrease while it is the same connection.
struct ViaRow {
  std::atomic<std::uint64_t> connection{0};  ///< a number, from 1; 0: no such row
  std::atomic<std::uint32_t> open{0};
  std::atomic<std::uint32_t> peer_pid{0};  ///< 0: on another host
  std::atomic<std::uint64_t> sent{0}, sent_bytes{0}, received{0}, received_bytes{0};
  std::atomic<std::uint64_t> rdma{0}, rdma_bytes{0};  ///< writes and reads of this end
  std::atomic<std::uint64_t> moved{0};    ///< of the messages sent, those whose data went by RDMA
  std::atomic<std::uint64_t> dropped{0};  ///< sent, and the peer had no buffer
};

/// The page; a memfd named kViaMemfdName.
struct ViaPage {
  static constexpr std::uint64_t kMagic = 0x31'30'61'69'76'2d'6e'63;  // "cn-via01"
  static constexpr unsigned kRows = 256;
  std::uint64_t magic = kMagic;
  std::uint32_t pid = 0;
  std::atomic<std::uint32_t> rows{0};     ///< in use; further VIs share the last one
  std::atomic<std::uint64_t> hostile{0};  ///< connections ended because the peer sent nonsense
  ViaRow row[kRows];
};
/// As /proc/PID/fd shows it: "/memfd:clan-via (deleted)".
constexpr char kViaMemfdName[] = "clan-via";

}  // namespace clan::via
