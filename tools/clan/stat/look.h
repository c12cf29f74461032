// One snapshot of all connections.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <vector>

#include "connection.h"

namespace clan::tool {

struct StatOptions;

struct Look {
  std::vector<Connection> connections;
  std::size_t refused = 0;         // processes that the caller may not read
  std::size_t unseen = 0;          // local connections whose ends only such processes can have
  std::size_t other_versions = 0;  // pipes of another CLAN
  std::vector<pid_t> absent;       // asked for, and not there
};

Look look(const StatOptions& options);

}  // namespace clan::tool
