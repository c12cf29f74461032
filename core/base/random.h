// Unpredictable numbers from the kernel, and the one-way function by which a peer checks an RDMA
// cookie's key without being able to make one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace clan {

/// 64 unpredictable bits, never 0. Source: getrandom(2).
std::uint64_t random_u64();

/// SipHash-2-4 (Aumasson and Bernstein, 2012) of `bytes` under the 128-bit key (k0, k1).
std::uint64_t siphash(std::uint64_t k0, std::uint64_t k1, std::span<const std::byte> bytes);

}  // namespace clan
