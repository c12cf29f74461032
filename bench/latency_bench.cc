// How long does a message take there and back, from 1 byte to 1 MB, as a stream and as a record?
// Both sides poll, or both wait in the kernel; one process per core.
//
// "clan-poll": both sides poll; "clan": both wait adaptively, as applications do by default.
#include "benchmarks.h"
#include "transports/bare_transport.h"
#include "transports/clan_transport.h"
#include "transports/kernel_transport.h"
#include "transports/round_trip.h"

namespace clan::bench {

namespace {

std::vector<std::size_t> message_sizes(const Context& context) {
  return context.sizes({1, 8, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576},
                       {64, 65536, 1048576}, {1, 64, 65536});
}

auto kernel(Family family, Wait wait) {
  return [=] { return KernelTransport(family, wait); };
}

auto clan_stream(WaitMode mode) {
  return [=] { return ClanStream(mode); };
}

auto clan_messages(WaitMode mode) {
  return [=] { return ClanMessages(mode); };
}

}  // namespace

void stream_latency(Context& context) {
  const std::string name = "stream_latency";
  const auto group = context.across_cores();
  for (std::size_t bytes : message_sizes(context)) {
    context.point({
        round_trip_variant(
            name, [] { return BareSlot(); }, bytes, group),
        round_trip_variant(name, clan_stream(WaitMode::kPoll), bytes, group),
        round_trip_variant(name, clan_stream(WaitMode::kAdaptive), bytes, group),
        round_trip_variant(name, kernel(Family::kTcp, Wait::kPoll), bytes, group),
        round_trip_variant(name, kernel(Family::kTcp, Wait::kBlock), bytes, group),
        round_trip_variant(name, kernel(Family::kUnixStream, Wait::kPoll), bytes, group),
        round_trip_variant(name, kernel(Family::kUnixStream, Wait::kBlock), bytes, group),
    });
  }
}

void message_latency(Context& context) {
  const std::string name = "message_latency";
  const auto group = context.across_cores();
  for (std::size_t bytes : message_sizes(context)) {
    context.point({
        round_trip_variant(
            name, [] { return BareSlot(); }, bytes, group),
        round_trip_variant(name, clan_messages(WaitMode::kPoll), bytes, group),
        round_trip_variant(name, clan_messages(WaitMode::kAdaptive), bytes, group),
        round_trip_variant(name, kernel(Family::kUnixSeqpacket, Wait::kPoll), bytes, group),
        round_trip_variant(name, kernel(Family::kUnixSeqpacket, Wait::kBlock), bytes, group),
    });
  }
}

}  // namespace clan::bench
