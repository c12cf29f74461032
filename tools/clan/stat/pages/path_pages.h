// Paths to other hosts: each context with a network keeps a page in a memfd
// (clan/face/path_page.h), found under /proc/PID/fd.
#pragma once

#include <clan/face/path_page.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "../address.h"

namespace clan::tool {

/// What one process knows of the path to another host's.
struct HostPath {
  pid_t pid = 0;
  std::uint16_t port = 0;  // of the process
  Address peer;
  const char* mode = "";     // off, integrity, encrypt
  const char* packets = "";  // sockets, xdp-stack, xdp-driver
  PathValues values;
};

struct HostPaths {
  std::vector<HostPath> paths;
  std::uint64_t not_shown = 0;  // peers for which their processes have no room in the page
};

/// Reads the pages of these processes, or of all.
HostPaths read_path_pages(const std::vector<pid_t>& pids);

}  // namespace clan::tool
