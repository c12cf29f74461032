// Endpoints of libclanunet: each process keeps a page in a memfd (clan/face/unet_face.h), found
// under /proc/PID/fd.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace clan::tool {

/// One endpoint; the counters' meaning is in clan/face/unet_face.h.
struct UnetEndpoint {
  std::uint32_t pid = 0, channels = 0, emulated = 0;
  std::uint64_t number = 0;
  std::uint64_t sent = 0, sent_bytes = 0, received = 0, received_bytes = 0;
  std::uint64_t dropped_buffer = 0, dropped_queue = 0, dropped_tag = 0;
  std::uint64_t returned = 0, deferrals = 0;
  std::uint64_t hostile = 0;  // of the process, whichever the endpoint
};

/// Reads the pages of these processes, or of all.
std::vector<UnetEndpoint> read_unet_pages(const std::vector<pid_t>& pids);

}  // namespace clan::tool
