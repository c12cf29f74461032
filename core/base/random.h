// Unpredictable numbers from the kernel, and the one-way function that lets a peer check an RDMA
// cookie's key without being able to make one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace clan {

/// 64 unpredictable bits, never 0. Source: getrandom(2).
std::uint64_t random_u64();

/// The same, fetched 32 at a time: a key costs a fraction of a system call. Not thread-safe. After
/// fork both processes would give out the same numbers: only objects that the child does not use
/// have one.
class RandomPool {
 public:
  std::uint64_t next();

 private:
  std::uint64_t words_[32];
  std::size_t used_ = 32;
};

/// SipHash-2-4 (Aumasson and Bernstein, 2012) of the 16 bytes (a, b) under the 128-bit key (k0,
/// k1).
std::uint64_t siphash(std::uint64_t k0, std::uint64_t k1, std::uint64_t a, std::uint64_t b);

/// The same of any bytes.
std::uint64_t siphash(std::uint64_t k0, std::uint64_t k1, std::span<const std::byte> bytes);

}  // namespace clan
