// From a pipe's page to a connection. The page is copied with pread() and not mapped: what is in it
// and how long the file is are the word of processes that may be hostile.
#pragma once

#include <clan/face/pipe.h>
#include <sys/types.h>

#include <string>
#include <utility>

#include "connection.h"
#include "scan.h"
#include "tcp_table.h"

namespace clan::tool {

enum class PageState { kPipe, kOtherVersion, kNotOne };

/// `expected`: device and inode that the file had in the scan.
PageState read_page(const std::string& link, const std::pair<dev_t, ino_t>& expected,
                    PipePage& page);
/// All but the processes.
Connection describe(const PipePage& page, const std::pair<dev_t, ino_t>& file);
/// The processes that hold the TCP socket of each end.
void find_processes(const Scan& scan, const Scan::PipeFile& file, const PipePage& page,
                    TcpTables& tables, Connection& connection);

}  // namespace clan::tool
