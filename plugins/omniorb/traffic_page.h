// What a process says about its CORBA connections over CLAN, for `clan stat`: a table in a memfd,
// which the tool finds under /proc/<pid>/fd by its name and reads.
//
// Layout, native byte order:
//     0    TrafficHead, 64 bytes
//     64   TrafficRow, 64 bytes each, kTrafficRows of them; the file is sparse
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace clan::orb {

constexpr char kTrafficName[] = "clan-orb";                     ///< /memfd:clan-orb (deleted)
constexpr std::uint64_t kTrafficMagic = 0x3130'6272'6f6e'6c63;  // "clnorb01"
constexpr std::uint32_t kTrafficRows = 16 * 1024 - 1;

struct TrafficHead {
  std::uint64_t magic;
  /// the process that writes; a forked child has a table of its own
  std::uint32_t pid;
  std::atomic<std::uint32_t> used;  ///< rows below this number may be in use
  std::uint64_t reserved[6];
};

/// Written by its process alone. `role` is stored last, and 0 when the connection has gone.
struct TrafficRow {
  std::atomic<std::uint32_t> role;  ///< 0: free; 1: client; 2: server
  std::uint32_t peer_pid;
  std::uint32_t peer_uid;
  std::uint32_t remote;      ///< 1: by UDP, the peer is on another host
  std::uint64_t created_ns;  ///< CLOCK_REALTIME
  std::atomic<std::uint64_t> bytes_out;
  std::atomic<std::uint64_t> bytes_in;
  std::atomic<std::uint64_t> messages_out;  ///< calls of the ORB that sent something
  std::atomic<std::uint64_t> messages_in;
  std::uint64_t pad;
};
static_assert(sizeof(TrafficHead) == 64 && sizeof(TrafficRow) == 64);

}  // namespace clan::orb
