// libclanunet.so's page, for `clan stat` and tests: a process's endpoints and their counters.
// Atomics, written by that process.
#pragma once

#include <atomic>
#include <cstdint>

namespace clan::unet {

/// One endpoint. Its counters never decrease while it is the same one.
struct UnetRow {
  std::atomic<std::uint64_t> number{0};  ///< from 1; 0: no such row
  std::atomic<std::uint32_t> open{0};
  std::atomic<std::uint32_t> channels{0};
  std::atomic<std::uint32_t> emulated{0};
  std::atomic<std::uint64_t> sent{0}, sent_bytes{0}, received{0}, received_bytes{0};
  std::atomic<std::uint64_t> dropped_buffer{0}, dropped_queue{0}, dropped_tag{0};
  std::atomic<std::uint64_t> returned{0}, deferrals{0};
};

/// The page; a memfd named kUnetMemfdName.
struct UnetPage {
  static constexpr std::uint64_t kMagic = 0x31'30'74'65'6e'75'6e'63;  // "cnunet01"
  static constexpr unsigned kRows = 1024;
  std::uint64_t magic = kMagic;
  std::uint32_t pid = 0;
  std::atomic<std::uint32_t> rows{0};     ///< that have been used; further endpoints have none
  std::atomic<std::uint64_t> hostile{0};  ///< peers that were left because they sent nonsense
  UnetRow row[kRows];
};
/// As /proc/PID/fd shows it: "/memfd:clan-unet (deleted)".
constexpr char kUnetMemfdName[] = "clan-unet";

}  // namespace clan::unet
