// The page with a context's paths to other hosts, for `clan stat` and tests: a memfd that its
// process writes, found under /proc/PID/fd by any process that may open it.
//
//   PathPage   whose it is, then a row for each peer
//   PathRow    begin | values | end      both the same number: the values belong together
//
// Written `end` first, `begin` last, and read upwards: a torn copy has two numbers.
#pragma once

#include <clan/detail/words.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace clan {

/// Which way packets to a peer leave.
enum class PacketPath : std::uint64_t {
  kSockets = 0,    ///< UDP sockets
  kXdpStack = 1,   ///< AF_XDP, its program in the kernel's stack: full packets by the sockets
  kXdpDriver = 2,  ///< AF_XDP, its program in the device's driver
};
constexpr const char* name_of(PacketPath path) {
  return path == PacketPath::kXdpDriver  ? "xdp-driver"
         : path == PacketPath::kXdpStack ? "xdp-stack"
                                         : "sockets";
}

/// A path, as this end sees it.
struct PathValues {
  std::uint64_t ip[2] = {};   ///< of the peer, IPv6, as in memory (IPv4 as ::ffff:a.b.c.d)
  std::uint64_t port = 0;     ///< 0: the row is free
  std::uint64_t pid = 0;      ///< of the peer, by its own word
  std::uint64_t packets = 0;  ///< PacketPath
  /// of packets, the peer's delay taken off
  std::uint64_t round_trip_ns = 0, least_round_trip_ns = 0;
  std::uint64_t packet_bytes = 0;  ///< the largest packet that is known to arrive
  std::uint64_t window_bytes = 0;
  std::uint64_t packets_sent = 0, packets_received = 0;
  std::uint64_t packets_lost = 0;  ///< and sent again; those that were late only are taken off
  std::uint64_t timeouts = 0;
  std::uint64_t spare = 0;
};

struct PathRow {
  static constexpr std::size_t kWords = sizeof(PathValues) / sizeof(std::uint64_t);
  std::atomic<std::uint64_t> begin{0};
  std::atomic<std::uint64_t> words[kWords] = {};
  std::atomic<std::uint64_t> end{0};
};
static_assert(sizeof(PathRow) == 128);

struct PathPage {
  static constexpr std::uint64_t kMagic = 0x31'68'74'61'70'2d'6e'63;  // "cn-path1"
  static constexpr std::size_t kRows = 64;
  std::uint64_t magic = kMagic;
  std::uint64_t pid = 0;
  std::uint64_t mode = 0;                   ///< 0 off, 1 integrity, 2 encrypt
  std::atomic<std::uint64_t> port{0};       ///< our UDP port
  std::atomic<std::uint64_t> not_shown{0};  ///< peers for which there is no row
  std::uint64_t spare[11] = {};
  PathRow rows[kRows];
};
static_assert(offsetof(PathPage, rows) == 128);

/// As /proc/PID/fd shows it: "/memfd:clan-paths (deleted)".
constexpr char kPathMemfdName[] = "clan-paths";

/// The values of a row, or of its copy. False: it was being written.
inline bool read_row(const PathRow& row, PathValues* values) {
  // PAIR path_page.row: sees the values that were written before
  const std::uint64_t begin = words::load_acquire(row.begin);
  auto* to = reinterpret_cast<std::uint64_t*>(values);
  for (std::size_t i = 0; i < PathRow::kWords; ++i) {
    to[i] = words::load_acquire(row.words[i]);  // PAIR path_page.row: before `end`
  }
  return row.end.load(std::memory_order_relaxed) == begin;  // relaxed: after the values
}

}  // namespace clan
