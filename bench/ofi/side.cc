#include "side.h"

#include <algorithm>
#include <cstdint>

namespace clan::bench::ofi {
namespace {

constexpr int kSlices = 9;
/// as long as asked for, to get as many slices that nothing disturbed
constexpr int kMostTimes = 5;

}  // namespace

double Side::run_loop(const Order& order) {
  switch (order.kind) {
    case Kind::kTagged:
    case Kind::kMessage: return ping_pong(order);
    case Kind::kTaggedWindow: return window(order);
    case Kind::kWriteWindow:
    case Kind::kReadWindow:
    case Kind::kWriteInject: return access_window(order);
    case Kind::kWrite:
    case Kind::kRead: return access_single(order);
    case Kind::kFetchAdd: return fetch_add(order);
    case Kind::kIdle: return idle();
    case Kind::kWakeUp: return wake_up(order);
    case Kind::kEventfd: return eventfd(order);
    case Kind::kEnd: break;
  }
  return 0;
}

/// Seconds. On both sides; the client's figure counts.
double Side::run(Order order) {
  if (client_) channel_.send(&order, sizeof order);
  double took = 0;
  const Slice slice;
  if (order.times == 0) {
    verify(order);
  } else {
    took = run_loop(order);
  }
  // Neither side stops making progress while the other may still need it.
  Spent spent = slice.spent();
  if (client_) {
    spent_ = spent;
    while (!channel_.ready()) progress();
    channel_.receive(&spent, sizeof spent);
    spent_ += spent;
  } else {
    channel_.send(&spent, sizeof spent);
  }
  return took;
}

void Side::serve() {
  for (;;) {
    const double until = now() + 0.001;
    while (!channel_.ready() && now() < until) progress();
    Order order;
    channel_.receive(&order, sizeof order);
    if (order.kind == Kind::kEnd) return;
    (void)run(order);
  }
}

Figure Side::measure(Kind kind, std::size_t bytes, double ms) {
  if (kind == Kind::kIdle) {
    const double us = run({kind, bytes, 1}) * 1e6;
    return {us, us};
  }
  const bool from_both =
      kind == Kind::kWriteWindow || kind == Kind::kReadWindow || kind == Kind::kWriteInject;
  const bool windows = kind == Kind::kTaggedWindow || from_both;
  const std::uint64_t unit = windows ? kWindow : 8;
  const std::uint64_t few = bytes <= 65536 ? 2 * kWindow : unit;
  (void)run({kind, bytes, 0});
  (void)run({kind, bytes, few});  // warm
  const double each = std::max(run({kind, bytes, few}) / static_cast<double>(few), 1e-9);
  const auto wanted = static_cast<std::uint64_t>(ms * 1e-3 / kSlices / each);
  const std::uint64_t times = std::clamp<std::uint64_t>(wanted, few, 4'000'000) / unit * unit;
  Slices slices;
  for (const double until = now() + kMostTimes * ms * 1e-3; slices.calm() < kSlices;) {
    const double us = run({kind, bytes, times}) / static_cast<double>(times) * 1e6;
    slices.add(us, spent_, static_cast<double>(times) * (from_both ? 2 : 1));
    if (now() > until) break;
  }
  (void)run({kind, bytes, 0});
  return slices.figure();
}

}  // namespace clan::bench::ofi
