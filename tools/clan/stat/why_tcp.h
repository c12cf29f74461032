// Why a connection is on TCP, as far as other processes can see.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "connection.h"
#include "process.h"
#include "scan.h"

namespace clan::tool {

/// Those of the end's processes that have the library.
std::vector<pid_t> under_clan(const EndView& end, Processes& processes);
/// Why a connection will not move; "" if nothing is known that keeps it. What holds for one of several
/// processes that have the same end does not count: another may move it.
std::string why_not_moved(const Connection& connection, Processes& processes);
/// The same, with what descriptors and filters of the ends say; `sockets`: of each end. Never "".
std::string why_on_tcp(const Scan& scan, const Connection& connection, const ino_t (&sockets)[2],
                       Processes& processes);

}  // namespace clan::tool
