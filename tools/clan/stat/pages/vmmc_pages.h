// VMMC of libclanvmmc: each process keeps a page in a memfd (clan/face/vmmc_face.h), found under
// /proc/PID/fd.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace clan::tool {

/// The counters of one process; the counters' meaning is in clan/face/vmmc_face.h.
struct VmmcCounters {
  std::uint32_t pid = 0;
  std::uint64_t buffers = 0, remotes = 0, bindings = 0;
  std::uint64_t sends = 0, sent_bytes = 0, notified = 0, delivered = 0, ignored = 0, lost = 0;
  std::uint64_t flushes = 0, compared_bytes = 0, mirrored_bytes = 0, hostile = 0;
};

/// Reads the pages of these processes, or of all.
std::vector<VmmcCounters> read_vmmc_pages(const std::vector<pid_t>& pids);

}  // namespace clan::tool
