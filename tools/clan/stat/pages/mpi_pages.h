// Ranks of MPI with btl clan: each keeps a page in a memfd (clan/face/mpi_face.h), found under
// /proc/PID/fd.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace clan::tool {

/// What one rank has sent to another; the counters' meaning is in clan/face/mpi_face.h.
struct MpiPair {
  std::uint32_t pid = 0, job = 0, rank = 0, peer_job = 0, peer_rank = 0;
  std::uint64_t messages = 0, bytes = 0;
  std::uint64_t gets = 0, get_bytes = 0, puts = 0, put_bytes = 0, atomics = 0;
  std::uint64_t queued = 0, nonsense = 0;  // of the rank, whichever the peer
};

/// Reads the pages of these processes, or of all; sorted by job and rank.
std::vector<MpiPair> read_mpi_pages(const std::vector<pid_t>& pids);

}  // namespace clan::tool
