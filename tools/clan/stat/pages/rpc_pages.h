// How the remote calls of processes with libclanrpc travel: each keeps its counters in a memfd
// (clan/face/rpc_face.h), found under /proc/PID/fd.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace clan::tool {

/// Counters of one process; their meaning is in clan/face/rpc_face.h.
struct RpcCounters {
  std::uint32_t pid = 0;
  std::uint64_t handles = 0, met = 0, calls_clan = 0, calls_stock = 0, lost = 0;
  std::uint64_t clients = 0, served = 0, replies_stock = 0, hostile = 0, sleeps = 0;
  std::uint64_t calls_far = 0, served_far = 0;
};

/// Reads the pages of these processes, or of all.
std::vector<RpcCounters> read_rpc_pages(const std::vector<pid_t>& pids);

}  // namespace clan::tool
