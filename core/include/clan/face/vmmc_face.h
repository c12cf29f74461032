// libclanvmmc.so's page, for `clan stat` and tests: what VMMC has done in a process. Atomics,
// written by that process.
#pragma once

#include <atomic>
#include <cstdint>

namespace clan::vmmc {

/// The page; a memfd named kVmmcMemfdName.
struct VmmcPage {
  static constexpr std::uint64_t kMagic = 0x31'30'6d'76'2d'6e'6c'63;  // "cln-vm01"
  using Count = std::atomic<std::uint64_t>;
  std::uint64_t magic = kMagic;
  std::uint32_t pid = 0;
  Count buffers{0}, remotes{0}, bindings{0};  ///< that there are now
  Count sends{0}, sent_bytes{0};              ///< deliberate updates, words too; at least
  Count notified{0};                          ///< notifications sent
  Count delivered{0};                         ///< handlers run
  Count ignored{0};                           ///< notifications dropped in the state "ignore"
  Count lost{0};                              ///< notifications dropped for want of room
  Count flushes{0}, compared_bytes{0}, mirrored_bytes{0};
  Count hostile{0};  ///< notifications that no importer sends
};
/// As /proc/PID/fd shows it: "/memfd:clan-vmmc (deleted)".
constexpr char kVmmcMemfdName[] = "clan-vmmc";

}  // namespace clan::vmmc
