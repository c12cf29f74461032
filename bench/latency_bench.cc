// How long does one cache line take to the other core and back (the limit of everything else), and
// how long a message of 1 byte to 1 MB, as a stream and as a record? One process per core.
//
// "clan-poll": both sides poll; "clan": both wait adaptively, as applications do by default.
#include "benchmarks.h"
#include "transports/bare_transport.h"
#include "transports/clan_transport.h"
#include "transports/kernel_transport.h"
#include "transports/loops.h"

namespace clan::bench {

namespace {

BareSlot bare() { return {}; }

std::vector<std::size_t> message_sizes(const Context& context) {
  return context.sizes({1, 8, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576},
                       {64, 65536, 1048576}, {1, 64, 65536});
}

}  // namespace

void cacheline(Context& context) {
  for (std::size_t bytes : context.sizes({1, 8, 56, 64, 120}, {8}, {8}))
    context.point({round_trip_variant("cacheline", bare, bytes, context.across_cores())});
}

void stream_latency(Context& context) {
  const auto group = context.across_cores();
  for (std::size_t bytes : message_sizes(context)) {
    const auto variant = [&](auto make) {
      return round_trip_variant("stream_latency", make, bytes, group);
    };
    context.point({variant(bare), variant(clan_stream(WaitMode::kPoll)),
                   variant(clan_stream(WaitMode::kAdaptive)),
                   variant(kernel(Family::kTcp, Wait::kPoll)),
                   variant(kernel(Family::kTcp, Wait::kBlock)),
                   variant(kernel(Family::kUnixStream, Wait::kPoll)),
                   variant(kernel(Family::kUnixStream, Wait::kBlock))});
  }
}

void message_latency(Context& context) {
  const auto group = context.across_cores();
  for (std::size_t bytes : message_sizes(context)) {
    const auto variant = [&](auto make) {
      return round_trip_variant("message_latency", make, bytes, group);
    };
    context.point({variant(bare), variant(clan_messages(WaitMode::kPoll)),
                   variant(clan_messages(WaitMode::kAdaptive)),
                   variant(kernel(Family::kUnixSeqpacket, Wait::kPoll)),
                   variant(kernel(Family::kUnixSeqpacket, Wait::kBlock))});
  }
}

}  // namespace clan::bench
