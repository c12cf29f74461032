// How often this program has allocated, and how much a part of it has: for tests of what must not
// allocate or grow. Not counted under sanitizers, which have an allocator of their own.
#pragma once

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CLAN_COUNTS_ALLOCATIONS 0
#else
#define CLAN_COUNTS_ALLOCATIONS 1
#endif

namespace clan::test {
std::uint64_t allocations();

/// While it lives, what its thread allocates and frees is added to `*account`; null: to none.
class Charge {
 public:
  explicit Charge(std::int64_t* account);
  ~Charge();
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

 private:
  std::int64_t* before_;
};
}  // namespace clan::test
