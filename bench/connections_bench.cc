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

namespace {

auto kernel(Family family, Wait wait) {
  return [=] { return KernelHubTransport(family, wait); };
}

auto clan_hub(WaitMode mode) {
  return [=] { return ClanHubTransport(mode); };
}

template <class Make>
Context::Variant idle_variant(Make make, std::size_t connections) {
  return [=](Context& context) {
    auto transport = make();
    return idle_round_trip(context, "idle_endpoints", transport, connections);
  };
}

template <class Make>
Context::Variant load_variant(Make make, std::size_t connections) {
  return [=](Context& context) {
    auto transport = make();
    return offered_load(context, "offered_load", transport, connections);
  };
}

}  // namespace

void idle_endpoints(Context& context) {
  for (std::size_t n : context.sizes({1, 10, 100, 1000, 10000}, {1, 1000}, {1, 20})) {
    context.point({
        idle_variant(clan_hub(WaitMode::kPoll), n),
        idle_variant(clan_hub(WaitMode::kAdaptive), n),
        idle_variant(kernel(Family::kTcp, Wait::kPoll), n),
        idle_variant(kernel(Family::kTcp, Wait::kBlock), n),
        idle_variant(kernel(Family::kUnixStream, Wait::kPoll), n),
        idle_variant(kernel(Family::kUnixStream, Wait::kBlock), n),
    });
  }
}

void offered_load(Context& context) {
  for (std::size_t n : context.sizes({1, 2, 4, 8, 16, 32, 64, 128, 256, 1024}, {1, 64}, {1, 8})) {
    context.point({
        load_variant(clan_hub(WaitMode::kPoll), n),
        load_variant(clan_hub(WaitMode::kAdaptive), n),
        load_variant(kernel(Family::kTcp, Wait::kBlock), n),
        load_variant(kernel(Family::kTcp, Wait::kPoll), n),
        load_variant(kernel(Family::kUnixStream, Wait::kBlock), n),
        load_variant(kernel(Family::kUnixStream, Wait::kPoll), n),
    });
  }
}

}  // namespace clan::bench
