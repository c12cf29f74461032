// Devices of `clan ip`: each process keeps a page in a memfd (clan/face/ip_face.h), found under
// /proc/PID/fd.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace clan::tool {

/// A device, in whatever network namespace. `clan ip status` has each peer's counters.
struct IpDevice {
  std::uint32_t pid = 0;
  std::string name, addresses;
  std::uint64_t peers = 0, peers_up = 0;
  std::uint64_t sent = 0, sent_bytes = 0, received = 0, received_bytes = 0;  // packets
  std::uint64_t waits = 0;                               // times that a peer's ring was full
  std::uint64_t dropped_sent = 0, dropped_received = 0;  // packets of this host, and of peers
  std::uint64_t strangers = 0;
};

/// Reads the pages of these processes, or of all.
std::vector<IpDevice> read_ip_pages(const std::vector<pid_t>& pids);

}  // namespace clan::tool
