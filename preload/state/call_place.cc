#include "state/call_place.h"

#include <cstdint>

#include "os/signals.h"
#include "os/sys.h"
#include "state/open_file.h"

namespace clan::preload {

std::uint64_t owner_word() { return sys::thread_word(static_cast<std::uint32_t>(thread_id())); }

Condition condition_of(std::uint64_t owner) {
  KeepErrno keep;
  if (!sys::counts_here(owner)) return Condition::kRuns;
  const auto thread = static_cast<pid_t>(owner & Slot::kId);
  if (!sys::exists(thread)) return Condition::kHasDied;
  return sys::is_stopped(thread) ? Condition::kIsStopped : Condition::kRuns;
}

}  // namespace clan::preload
