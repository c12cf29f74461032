// How often this program has allocated: for tests of what must not. Not counted under sanitizers,
// which have an allocator of their own.
#pragma once

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CLAN_COUNTS_ALLOCATIONS 0
#else
#define CLAN_COUNTS_ALLOCATIONS 1
#endif

namespace clan::test {
std::uint64_t allocations();
}  // namespace clan::test
