// Opening and closing a VMMC, and the counters of the process.
#include <clan/detail/fork_lock.h>
#include <clan/detail/log.h>
#include <clan/face/counter_page.h>
#include <clan/face/settings.h>
#include <unistd.h>

#include "binding.h"
#include "objects.h"

namespace clan::vmmc {
namespace {

std::mutex making;
std::atomic<VmmcPage*> page_made{nullptr};

void in_child() {
  words::store_release(page_made, static_cast<VmmcPage*>(nullptr));
  words::add(forks, 1u);
}

}  // namespace

VmmcPage& page() {
  if (VmmcPage* const there = words::load_acquire(page_made)) return *there;
  std::lock_guard lock(making);
  (void)hold_over_forks<making, in_child>();
  if (words::load_acquire(page_made) == nullptr)
    words::store_release(page_made, make_counter_page<VmmcPage>(kVmmcMemfdName));
  return *words::load_acquire(page_made);
}

std::int64_t milliseconds_until(std::uint64_t deadline_ns) {
  if (deadline_ns == kNoDeadline) return -1;
  const std::uint64_t now = monotonic_ns();
  return now >= deadline_ns ? 0 : static_cast<std::int64_t>((deadline_ns - now) / 1'000'000 + 1);
}

}  // namespace clan::vmmc

vmmc::vmmc(clan::Context made, clan::MessageEndpoint bell, clan::MessageEndpoint rings, bool poll)
    : context(std::move(made)),
      polled(poll),
      bells(std::move(rings)),
      transfers(context),
      arrivals(std::move(bell)) {
  if (!polled) thread = std::thread([this] { run(); });
}

vmmc::~vmmc() {
  flusher.reset();
  if (!thread.joinable()) return;
  clan::words::store_release(ends, true);
  arrivals.wake();
  thread.join();
}

extern "C" CLAN_EXPORT int vmmc_open(unsigned flags, vmmc_t** v) {
  if (v == nullptr || (flags & ~VMMC_HANDLERS_IN_POLL) != 0) return -EINVAL;
  const clan::Settings settings = clan::settings_of_environment("VMMC is not to be had");
  if (settings.disable) return -EOPNOTSUPP;
  auto context = clan::create_context(settings.context_options(), "VMMC's transfers");
  if (!context) return -context.error().err;
  auto bell = clan::MessageEndpoint::create(*context);
  if (!bell) return -bell.error().err;
  auto rings = clan::MessageEndpoint::create(*context);
  if (!rings) return -rings.error().err;
  (void)clan::vmmc::page();
  *v = new vmmc_t(std::move(*context), std::move(*bell), std::move(*rings),
                  (flags & VMMC_HANDLERS_IN_POLL) != 0);
  return 0;
}

extern "C" CLAN_EXPORT int vmmc_close(vmmc_t* v) {
  if (const int rc = clan::vmmc::check(v); rc != 0) return rc;
  if (clan::words::load_acquire(v->users) != 0) return -EBUSY;
  if (v->thread.get_id() == std::this_thread::get_id()) return -EDEADLK;
  delete v;
  return 0;
}
