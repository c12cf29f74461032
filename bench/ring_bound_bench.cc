// What can one producer and one consumer do with an in-slot flag and no protocol? Latency of a
// message through the ring, and messages per second, in 64-byte slots (payload up to 56 bytes) and
// 128-byte slots (payload 64). Once plainly, once with the producer prefetching slots for writing.
#include "benchmarks.h"
#include "transports/bare_transport.h"
#include "transports/one_way.h"
#include "transports/round_trip.h"

namespace clan::bench {

namespace {

template <std::size_t kSlot, std::size_t kPayload>
void measure(Context& context) {
  const auto plain = [] { return BareRing<kSlot, kPayload>(); };
  const auto ahead = [] { return BareRing<kSlot, kPayload, kPrefetchAhead>(); };
  const auto group = context.across_cores();
  const auto rate = Figure::kMessageRate;
  context.point({round_trip_variant("ring_bound_latency", plain, kPayload, group),
                 round_trip_variant("ring_bound_latency", ahead, kPayload, group)});
  context.point({one_way_variant("ring_bound_rate", plain, kPayload, rate, group),
                 one_way_variant("ring_bound_rate", ahead, kPayload, rate, group)});
}

}  // namespace

void ring_bound(Context& context) {
  measure<64, 8>(context);
  measure<64, 48>(context);
  measure<128, 64>(context);
}

}  // namespace clan::bench
