// Gateways: each keeps a page in a memfd (clan/face/gateway_face.h), found under /proc/PID/fd.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace clan::tool {

struct GatewayTarget {
  std::string name;
  bool works = true;
  std::uint64_t connections = 0, served = 0, failures = 0;
};

/// The counters of one process; the counters' meaning is in clan/face/gateway_face.h.
struct GatewayCounters {
  std::uint32_t pid = 0;
  bool draining = false;
  std::uint64_t connections = 0, accepted = 0, ended = 0, reset = 0, bytes_in = 0, bytes_out = 0;
  std::uint64_t refused_source = 0, refused_header = 0, refused_target = 0, failed_connects = 0;
  std::uint64_t accept_errors = 0, reloads = 0, failed_reloads = 0;
  std::vector<GatewayTarget> targets;
};

/// Reads the pages of these processes, or of all.
std::vector<GatewayCounters> read_gateway_pages(const std::vector<pid_t>& pids);

}  // namespace clan::tool
