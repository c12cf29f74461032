#include "clan/wait_budget.h"

#include <sys/types.h>

#include <cerrno>

#include "clan/clock.h"
#include "clan/system_call.h"

namespace clan {
namespace {

constexpr std::uint64_t kLookNs = 10'000'000;

}  // namespace

OwnerWait::Owner OwnerWait::look(std::uint32_t thread, const WaitBudget& for_owner,
                                 std::uint64_t unseen_ns) {
  auto relaxed = std::memory_order_relaxed;  // numbers by themselves
  const std::uint64_t now = monotonic_ns(), last = looked_ns_.load(relaxed);
  if (last != 0 && now - last < kLookNs) return Owner::kIsWaitedFor;
  looked_ns_.store(now, relaxed);
  if (last == 0) return Owner::kIsWaitedFor;
  const int saved_errno = errno;
  const std::uint64_t step = std::min(now - last, CallWait::kMostOfAStepNs);
  const auto id = static_cast<pid_t>(thread);
  const bool seen = id != 0 && sys::exists(id);
  const std::uint64_t unseen = seen ? 0 : unseen_ns_.load(relaxed) + step;
  unseen_ns_.store(unseen, relaxed);
  const bool counts = !seen || !sys::is_stopped(id);
  const std::uint64_t waited = waited_ns_.load(relaxed) + (counts ? step : 0);
  waited_ns_.store(waited, relaxed);
  errno = saved_errno;
  if (unseen > unseen_ns) return Owner::kHasDied;
  return waited > for_owner.left_ns(now) ? Owner::kKeepsIt : Owner::kIsWaitedFor;
}

void OwnerWait::over(WaitBudget& for_owner) {
  auto relaxed = std::memory_order_relaxed;  // numbers by themselves
  const std::uint64_t looked = looked_ns_.load(relaxed);
  if (looked != 0) for_owner.spend(looked, waited_ns_.load(relaxed));
  reset();
}

void OwnerWait::reset() {
  auto relaxed = std::memory_order_relaxed;  // numbers by themselves
  gave_up_.store(false, relaxed);
  for (auto* number : {&looked_ns_, &waited_ns_, &unseen_ns_}) number->store(0, relaxed);
}

}  // namespace clan
