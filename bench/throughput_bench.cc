// How many bytes, and how many small messages, go through one connection in a second?
//
// Bandwidth is a stream's; the message rate is a message endpoint's ("clan") and, for comparison, a
// stream's that is sent as many pieces ("clan, stream").
#include "benchmarks.h"
#include "transports/bare_bulk.h"
#include "transports/bare_transport.h"
#include "transports/clan_transport.h"
#include "transports/kernel_transport.h"
#include "transports/one_way.h"

namespace clan::bench {

namespace {

auto kernel(Family family, Wait wait) {
  return [=] { return KernelTransport(family, wait); };
}

template <std::size_t kSlot, std::size_t kPayload>
void measure_rate(Context& context) {
  const std::string name = "message_rate";
  const auto group = context.across_cores();
  const auto figure = Figure::kMessageRate;
  const auto ring = [] { return BareRing<kSlot, kPayload>(); };
  const auto ahead = [] { return BareRing<kSlot, kPayload, kPrefetchAhead>(); };
  const auto messages = [] { return ClanMessages(WaitMode::kAdaptive); };
  const auto stream = [] { return ClanStream(WaitMode::kAdaptive, "clan, stream"); };
  context.point({
      one_way_variant(name, ring, kPayload, figure, group),
      one_way_variant(name, ahead, kPayload, figure, group),
      one_way_variant(name, messages, kPayload, figure, group),
      one_way_variant(name, stream, kPayload, figure, group),
      one_way_variant(name, kernel(Family::kTcp, Wait::kBlock), kPayload, figure, group),
      one_way_variant(name, kernel(Family::kUnixStream, Wait::kBlock), kPayload, figure, group),
      one_way_variant(name, kernel(Family::kUnixSeqpacket, Wait::kBlock), kPayload, figure, group),
  });
}

}  // namespace

void bandwidth(Context& context) {
  const std::string name = "bandwidth";
  const auto group = context.across_cores();
  const auto figure = Figure::kBandwidth;
  const auto bulk = [] { return BareBulk(); };
  const auto clan_poll = [] { return ClanStream(WaitMode::kPoll); };
  const auto clan_adaptive = [] { return ClanStream(WaitMode::kAdaptive); };
  for (std::size_t bytes : context.sizes({64, 256, 1024, 4096, 16384, 65536, 262144, 1048576},
                                         {65536, 1048576}, {4096})) {
    context.point({
        one_way_variant(name, bulk, bytes, figure, group),
        one_way_variant(name, clan_poll, bytes, figure, group),
        one_way_variant(name, clan_adaptive, bytes, figure, group),
        one_way_variant(name, kernel(Family::kTcp, Wait::kBlock), bytes, figure, group),
        one_way_variant(name, kernel(Family::kTcp, Wait::kPoll), bytes, figure, group),
        one_way_variant(name, kernel(Family::kUnixStream, Wait::kBlock), bytes, figure, group),
        one_way_variant(name, kernel(Family::kUnixStream, Wait::kPoll), bytes, figure, group),
    });
  }
}

void message_rate(Context& context) {
  measure_rate<64, 8>(context);
  measure_rate<128, 64>(context);
}

}  // namespace clan::bench
