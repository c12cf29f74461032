// The measuring loops of a connection, written once for every transport. Both ends check every
// message (support/pattern.h).
//
//   round trips   the client sends, the server sends the same back; every trip is timed
//   one way       the client sends a burst, the server answers once at its end; every burst gives
//                 one figure
#pragma once

#include "support/clock.h"
#include "support/context.h"
#include "support/pattern.h"
#include "transports/transport.h"

namespace clan::bench {

/// The client of round trips: warms up, agrees on the length of a sample, and times every `trip`.
template <class Trip>
bool time_trips(Member& m, std::uint64_t warm_up, Trip trip) {
  std::uint64_t number = 0, start = 0;
  for (std::uint64_t i = 0; i < warm_up; ++i) {
    if (i == warm_up / 2) start = Clock::now();
    if (!trip(number++)) return m.fail("warm-up: wrong or no answer");
  }
  const double each = Clock::ns_since(start) / static_cast<double>(warm_up - warm_up / 2);
  const std::uint64_t trips = m.agree(m.repeats_for(each));
  m.reserve(trips);
  while (m.next_sample()) {
    std::uint64_t last = Clock::now();
    for (std::uint64_t i = 0; i < trips; ++i) {
      if (!trip(number++)) return m.fail("wrong or no answer");
      const std::uint64_t now = Clock::now();
      m.record(Clock::to_ns(now - last));
      last = now;
    }
  }
  return true;
}

/// The server of round trips: `serve` answers so many.
template <class Serve>
bool serve_trips(Member& m, std::uint64_t warm_up, Serve serve) {
  if (!serve(warm_up)) return false;
  const std::uint64_t trips = m.agree(0);
  while (m.next_sample()) {
    if (!serve(trips)) return false;
  }
  return true;
}

/// All members: two bursts to warm up, the second of which tells how many operations make a sample,
/// at most `most` and at least `least`; then a burst a sample, whose ns per operation are recorded.
template <class Burst>
bool time_bursts(Member& m, std::uint64_t warm_up, Burst burst, std::uint64_t most = 5'000'000,
                 std::uint64_t least = 0) {
  if (!burst(warm_up)) return false;
  const std::uint64_t start = Clock::now();
  if (!burst(warm_up)) return false;
  const double each = Clock::ns_since(start) / static_cast<double>(warm_up);
  const std::uint64_t count = m.agree(std::max(m.repeats_for(each, most), least));
  while (m.next_sample()) {
    const std::uint64_t begin = Clock::now();
    if (!burst(count)) return false;
    m.record(Clock::ns_since(begin) / static_cast<double>(count));
    if (m.index() == 0) m.did(count);
  }
  return true;
}

template <TransportEnd E>
bool trip(E& end, MessageSource& source, std::span<std::byte> in, std::uint64_t number) {
  return end.send(source.message(number)) && end.recv(in) && check(in, number);
}

// Both sides receive in one buffer and send from another, as ucx_perftest does: sending back what
// has just been received would measure the transfer of dirty cache lines too, and only for some.
template <TransportEnd E>
bool answer(E& end, MessageSource& source, std::span<std::byte> in, std::uint64_t number) {
  return end.recv(in) && check(in, number) && end.send(source.message(number));
}

/// Opens a transport in both members and runs `body(member, end)` there.
template <Transport T, class Body>
std::optional<Outcome> run_pair(Context& context, const std::string& benchmark, T& transport,
                                std::size_t bytes, const GroupOptions& group, Body body) {
  return context.run(benchmark, transport.name(), transport.prepare(bytes), group, [&](Member& m) {
    auto end = transport.open(m.side());
    return end ? body(m, *end) : m.fail("cannot open the connection");
  });
}

template <TransportEnd E>
bool round_trip_member(Member& m, E& end, std::size_t bytes) {
  const std::uint64_t warm_up = m.options().smoke ? 4 : bytes >= 65536 ? 64 : 512;
  MessageSource source(bytes);
  std::vector<std::byte> in(bytes);
  if (m.index() == 0)
    return time_trips(m, warm_up, [&](std::uint64_t n) { return trip(end, source, in, n); });
  std::uint64_t number = 0;
  return serve_trips(m, warm_up, [&](std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      if (!answer(end, source, in, number++)) return m.fail("wrong or no message");
    }
    return true;
  });
}

/// Round-trip time in ns of messages of `bytes`. The transport is made anew for every measurement.
template <class Make>
Context::Variant round_trip_variant(std::string benchmark, Make make, std::size_t bytes,
                                    GroupOptions group) {
  return [=](Context& context) -> std::optional<Row> {
    auto transport = make();
    const auto outcome =
        run_pair(context, benchmark, transport, bytes, group,
                 [&](Member& m, auto& end) { return round_trip_member(m, end, bytes); });
    if (!outcome) return std::nullopt;
    return make_row(benchmark, transport.name(), static_cast<double>(bytes), "ns", *outcome);
  };
}

/// The answer of a burst has the size of its messages, up to this.
inline constexpr std::size_t kMostAcked = 1024;

template <TransportEnd E>
bool one_way_member(Member& m, E& end, std::size_t bytes) {
  const std::size_t ack_bytes = std::min(bytes, kMostAcked);
  const bool client = m.index() == 0;
  MessageSource source(client ? bytes : ack_bytes);
  std::vector<std::byte> in(client ? ack_bytes : bytes);
  std::uint64_t number = 0;
  const auto out = [&](std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      if (!end.send(source.message(number++))) return false;
    }
    return end.recv(in) && check(in, number - 1);
  };
  const auto take = [&](std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      if (!end.recv(in) || !check(in, number++)) return false;
    }
    return end.send(source.message(number - 1));
  };
  const std::uint64_t warm_up = m.options().smoke ? 4 : bytes >= 65536 ? 64 : 2048;
  return time_bursts(m, warm_up, [&](std::uint64_t count) {
    return (client ? out(count) : take(count)) || m.fail("data lost or damaged");
  });
}

enum class Figure { kMessageRate, kBandwidth };

/// Messages, or bytes, per second in one direction. `variant`: another name than the transport's.
template <class Make>
Context::Variant one_way_variant(std::string benchmark, Make make, std::size_t bytes, Figure figure,
                                 GroupOptions group, std::string variant = {}) {
  return [=](Context& context) -> std::optional<Row> {
    auto transport = make();
    const auto outcome =
        run_pair(context, benchmark, transport, bytes, group,
                 [&](Member& m, auto& end) { return one_way_member(m, end, bytes); });
    if (!outcome) return std::nullopt;
    const auto x = static_cast<double>(bytes);
    const std::string name = variant.empty() ? transport.name() : variant;
    return figure == Figure::kMessageRate ? rate_row(benchmark, name, x, "M msg/s", *outcome, 1e3)
                                          : rate_row(benchmark, name, x, "GB/s", *outcome, x);
  };
}

}  // namespace clan::bench
