// How long does one cache line take to the other core and back? The limit of everything else.
#include "benchmarks.h"
#include "transports/bare_transport.h"
#include "transports/round_trip.h"

namespace clan::bench {

void cacheline(Context& context) {
  for (std::size_t bytes : context.sizes({1, 8, 56, 64, 120}, {8}, {8})) {
    context.point({round_trip_variant(
        "cacheline", [] { return BareSlot(); }, bytes, context.across_cores())});
  }
}

}  // namespace clan::bench
