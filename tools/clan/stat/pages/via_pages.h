// VIs of libvipl: each process keeps a page in a memfd (clan/face/via_face.h), found under
// /proc/PID/fd.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace clan::tool {

/// One connected VI; the counters' meaning is in clan/face/via_face.h.
struct ViaConnection {
  std::uint32_t pid = 0, peer_pid = 0;
  std::uint64_t number = 0;
  std::uint64_t sent = 0, sent_bytes = 0, received = 0, received_bytes = 0;
  std::uint64_t rdma = 0, rdma_bytes = 0, moved = 0, dropped = 0;
  std::uint64_t hostile = 0;  // of the process, whichever the VI
};

/// Reads the pages of these processes, or of all.
std::vector<ViaConnection> read_via_pages(const std::vector<pid_t>& pids);

}  // namespace clan::tool
