// `clan stat --all`: connections that could be over CLAN and are not.
#pragma once

#include <vector>

#include "connection.h"
#include "process.h"
#include "reasons.h"
#include "scan.h"
#include "tcp_table.h"

namespace clan::tool {

/// Local TCP connections with a program under CLAN at one end at least, and those to other hosts of
/// programs under `clan run --net`, that are in none of `listed`.
void add_unmoved(const Scan& scan, const ReasonPages& pages, TcpTables& tables,
                 Processes& processes, std::vector<Connection>& listed);

}  // namespace clan::tool
