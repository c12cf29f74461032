// Traces of parallel programs and servers, made by running them.
//
// The sorts and the multiplication are run for all nodes, on seeded random data, with the memory
// and messages a Split-C program on U-Net/MM would use; what one node's NIC does is the trace. The
// same seed gives the same trace on every machine. README.md says what each program does.
#pragma once

#include <clan/result.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "trace.h"

namespace clan::tlbsim {

struct Workload {
  std::uint64_t seed = 1;
  std::size_t keys_per_node = 256 * 1024;  ///< sorts
  std::size_t nodes = 8;                   ///< sorts; a power of two is not needed
  std::size_t processes = 32;              ///< sockets
  std::size_t concurrent = 8;              ///< sockets: sessions at a time
};

struct Kind {
  std::string_view name;
  std::string_view what;
};

/// The workloads of figure 3.
std::span<const Kind> kinds();

/// Runs one. ENOENT: no such kind; EINVAL: sizes out of bounds; EPROTO: the program's own result
/// was wrong, so the trace is worthless.
Status run_workload(std::string_view kind, const Workload& workload, const Sink& sink);

}  // namespace clan::tlbsim
