// The part of the differential test that is about threads and epoll sets.
#pragma once

#include <cstdint>

namespace clan::interpose_test {

/// Prints the transcript; returns the exit code.
int run_sets(std::uint64_t seed, int steps);

}  // namespace clan::interpose_test
