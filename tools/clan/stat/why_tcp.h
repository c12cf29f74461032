// Why a connection is on TCP, as far as other processes can see.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "connection.h"
#include "process.h"
#include "reasons.h"
#include "scan.h"

namespace clan::tool {

/// Those of the end's processes that have the library.
std::vector<pid_t> under_clan(const EndView& end, Processes& processes);
/// Why a connection will not move; "" if nothing is known that keeps it. What holds for one of
/// several processes that have the same end does not count: another may move it.
std::string why_not_moved(const Connection& connection, Processes& processes);
/// The same, with what the ends say themselves, and their descriptors and filters. Never "". Fills
/// in the calls of both ends.
std::string why_on_tcp(const Scan& scan, const ReasonPages& pages, Connection& connection,
                       Processes& processes);
/// The same for a connection to another host, of which only the first end is on this one.
std::string why_far_on_tcp(const Scan& scan, const ReasonPages& pages, Connection& connection,
                           Processes& processes);
/// To a connection that has a pipe and goes by TCP: what its ends say.
void add_what_is_said(const ReasonPages& pages, Connection& connection);

}  // namespace clan::tool
