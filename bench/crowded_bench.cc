// What happens when there are fewer cores than runnable processes? Spinning loses here.
//
// same_core        both ends of a ping-pong on one core
// oversubscribed   eight processes, four ping-pongs, free on two cores
#include "benchmarks.h"
#include "transports/clan_transport.h"
#include "transports/kernel_transport.h"
#include "transports/loops.h"

namespace clan::bench {

namespace {

constexpr std::size_t kPairs = 4;

/// A client's part among many: round-trip times in channel 0, trips per second in channel 1.
template <TransportEnd E>
bool crowded_member(Member& m, E& end, std::size_t bytes) {
  const std::uint64_t warm_up = m.options().smoke ? 4 : 200;
  const bool client = m.index() % 2 == 0;
  MessageSource source(bytes);
  std::vector<std::byte> in(bytes);
  std::uint64_t number = 0;
  const auto trips_of = [&](std::uint64_t trips, bool record) {
    std::uint64_t last = Clock::now();
    for (std::uint64_t i = 0; i < trips; ++i, ++number) {
      if (!(client ? trip(end, source, in, number) : answer(end, source, in, number)))
        return m.fail("wrong or no answer");
      if (!record || !client) continue;
      const std::uint64_t now = Clock::now();
      m.record(Clock::to_ns(now - last));
      last = now;
    }
    return true;
  };
  m.barrier();
  const std::uint64_t start = Clock::now();
  if (!trips_of(warm_up, false)) return false;
  const double each = Clock::ns_since(start) / static_cast<double>(warm_up);
  const std::uint64_t trips = m.agree(m.repeats_for(each));
  while (m.next_sample()) {
    const std::uint64_t begin = Clock::now();
    if (!trips_of(trips, true)) return false;
    const double seconds = Clock::ns_since(begin) / 1e9;
    m.record(client ? static_cast<double>(trips) / seconds : 0, 1);
    if (client) m.did(trips);
  }
  return true;
}

/// Both rows of one variant: the total rate is returned, the first pair's latency is added.
template <class Make>
Context::Variant crowded_variant(Make make, std::size_t bytes) {
  return [=](Context& context) -> std::optional<Row> {
    std::vector<decltype(make())> transports;
    std::string why_not;
    for (std::size_t i = 0; i < kPairs; ++i) {
      const std::string why = transports.emplace_back(make()).prepare(bytes);
      if (why_not.empty()) why_not = why;
    }
    const std::string name = transports.front().name();
    const auto outcome = context.run(
        "oversubscribed", name, why_not, context.on_two_cores(2 * kPairs), [&](Member& m) {
          const Side side = m.index() % 2 == 0 ? Side::kClient : Side::kServer;
          auto end = transports[m.index() / 2].open(side);
          return end ? crowded_member(m, *end, bytes) : m.fail("cannot open the connection");
        });
    if (!outcome) return std::nullopt;
    std::vector<double> totals;
    for (const MemberResult& member : outcome->members) {
      totals.resize(std::max(totals.size(), member.runs[1].size()));
      for (std::size_t i = 0; i < member.runs[1].size(); ++i) totals[i] += member.runs[1][i] / 1e3;
    }
    const auto x = static_cast<double>(bytes);
    Row latency = make_row("oversubscribed_latency", name, x, "ns", *outcome);
    latency.cpu_ns = 0;
    context.results().add(latency);
    Row rate = make_row("oversubscribed", name, x, "k trips/s", *outcome);
    rate.higher_is_better = true;
    rate.stats = summarise_runs(totals);
    rate.op_ns = 1e6 / rate.stats.p50;
    return rate;
  };
}

}  // namespace

void same_core(Context& context) {
  for (std::size_t bytes : context.sizes({8, 64, 1024, 16384, 65536}, {64}, {64})) {
    const auto variant = [&](auto make) {
      return round_trip_variant("same_core", make, bytes, context.on_one_core());
    };
    context.point({variant(clan_stream(WaitMode::kAdaptive)),
                   variant(kernel(Family::kTcp, Wait::kBlock)),
                   variant(kernel(Family::kUnixStream, Wait::kBlock)),
                   variant(kernel(Family::kUnixSeqpacket, Wait::kBlock))});
  }
}

void oversubscribed(Context& context) {
  for (std::size_t bytes : context.sizes({64, 1024}, {64}, {64})) {
    context.point({crowded_variant(clan_stream(WaitMode::kAdaptive), bytes)});
    for (const Family family : {Family::kTcp, Family::kUnixStream, Family::kUnixSeqpacket})
      context.point({crowded_variant(kernel(family, Wait::kBlock), bytes)});
  }
}

}  // namespace clan::bench
