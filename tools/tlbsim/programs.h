// The programs behind the workloads. False: its own result was wrong.
#pragma once

#include <cstddef>
#include <cstdint>

#include "generators.h"

namespace clan::tlbsim {

/// `bulk`: runs of keys are gathered and sent, instead of a message for each.
bool radix_sort(const Workload& workload, const Sink& sink, bool bulk);
bool sample_sort(const Workload& workload, const Sink& sink, bool bulk);
/// n x n blocks of b x b doubles on a grid of g x g nodes.
bool matrix_multiply(std::size_t n, std::size_t b, std::size_t grid, std::uint64_t seed,
                     const Sink& sink);
void socket_sessions(const Workload& workload, const Sink& sink);

}  // namespace clan::tlbsim
