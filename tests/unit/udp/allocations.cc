#include "udp/allocations.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>

namespace {
std::atomic<std::uint64_t> g_allocations{0};
thread_local std::int64_t* t_account = nullptr;
}  // namespace

namespace clan::test {
std::uint64_t allocations() { return g_allocations.load(); }

Charge::Charge(std::int64_t* account) : before_(std::exchange(t_account, account)) {}
Charge::~Charge() { t_account = before_; }
}  // namespace clan::test

#if CLAN_COUNTS_ALLOCATIONS
void* operator new(std::size_t bytes) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
  void* const p = std::malloc(bytes);
  if (p == nullptr) throw std::bad_alloc();
  if (t_account != nullptr) *t_account += static_cast<std::int64_t>(malloc_usable_size(p));
  return p;
}
void operator delete(void* p) noexcept {
  if (t_account != nullptr) *t_account -= static_cast<std::int64_t>(malloc_usable_size(p));
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept { operator delete(p); }
#endif
