// What do connections cost that are merely there, and what does a server do under many that ask?
//
// idle_endpoints   figure 5: round trip on one connection against the number of idle ones
// offered_load     figure 6: requests per second against the number of connections asking
//
// The kernel's variants wait in epoll_wait; "-poll" ones call it with no time-out until it answers.
// CLAN's are streams registered with one event queue.
#include "benchmarks.h"
#include "transports/clan_transport.h"
#include "transports/hub_loops.h"
#include "transports/kernel_transport.h"

namespace clan::bench {

void idle_endpoints(Context& context) {
  for (std::size_t n : context.sizes({1, 10, 100, 1000, 10000}, {1, 1000}, {1, 20})) {
    const auto variant = [&](auto make) { return idle_variant("idle_endpoints", make, n); };
    context.point({variant(clan_hub(WaitMode::kPoll)), variant(clan_hub(WaitMode::kAdaptive)),
                   variant(kernel_hub(Family::kTcp, Wait::kPoll)),
                   variant(kernel_hub(Family::kTcp, Wait::kBlock)),
                   variant(kernel_hub(Family::kUnixStream, Wait::kPoll)),
                   variant(kernel_hub(Family::kUnixStream, Wait::kBlock))});
  }
}

void offered_load(Context& context) {
  for (std::size_t n : context.sizes({1, 2, 4, 8, 16, 32, 64, 128, 256, 1024}, {1, 64}, {1, 8})) {
    const auto variant = [&](auto make) { return load_variant("offered_load", make, n); };
    context.point({variant(clan_hub(WaitMode::kPoll)), variant(clan_hub(WaitMode::kAdaptive)),
                   variant(kernel_hub(Family::kTcp, Wait::kBlock)),
                   variant(kernel_hub(Family::kTcp, Wait::kPoll)),
                   variant(kernel_hub(Family::kUnixStream, Wait::kBlock)),
                   variant(kernel_hub(Family::kUnixStream, Wait::kPoll))});
  }
}

}  // namespace clan::bench
