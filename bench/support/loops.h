// The measuring loops, each written once for every transport.
//
// round_trip   client sends, server sends the same back; every trip is timed
// one_way      client sends a burst, server answers once at its end; every burst gives one figure
//
// Both check every message on both sides (support/pattern.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/clock.h"
#include "support/context.h"
#include "support/pattern.h"
#include "support/transport.h"

namespace clan::bench {

namespace detail {

template <TransportEnd E>
bool trip(E& end, MessageSource& source, std::span<std::byte> in, std::uint64_t number) {
  return end.send(source.message(number)) && end.flush() && end.recv(in) && check(in, number);
}

// Both sides receive in one buffer and send from another, as ucx_perftest does: sending back what
// has just been received would measure the transfer of dirty cache lines too, and only for some.
template <TransportEnd E>
bool answer(E& end, MessageSource& source, std::span<std::byte> in, std::uint64_t number) {
  return end.recv(in) && check(in, number) && end.send(source.message(number)) && end.flush();
}

/// The client's side of one member's life: warm up, agree on the length of a sample, measure.
template <TransportEnd E>
bool drive_round_trips(Member& m, E& end, std::size_t bytes, std::uint64_t warm_up) {
  MessageSource source(bytes);
  std::vector<std::byte> in(bytes);
  std::uint64_t number = 0;
  std::uint64_t start = Clock::now();
  for (std::uint64_t i = 0; i < warm_up; ++i) {
    if (i == warm_up / 2) start = Clock::now();
    if (!trip(end, source, in, number++)) return m.fail("warm-up: wrong or no answer");
  }
  const std::uint64_t timed = warm_up - warm_up / 2;
  const double trip_ns = Clock::to_ns(Clock::now() - start) / static_cast<double>(timed);
  const std::uint64_t trips = m.agree(m.repeats_for(trip_ns));
  m.reserve(trips);
  while (m.next_sample()) {
    std::uint64_t last = Clock::now();
    for (std::uint64_t i = 0; i < trips; ++i) {
      if (!trip(end, source, in, number++)) return m.fail("wrong or no answer");
      const std::uint64_t now = Clock::now();
      m.record(Clock::to_ns(now - last));
      last = now;
    }
  }
  return true;
}

template <TransportEnd E>
bool answer_round_trips(Member& m, E& end, std::size_t bytes, std::uint64_t warm_up) {
  MessageSource source(bytes);
  std::vector<std::byte> in(bytes);
  std::uint64_t number = 0;
  for (std::uint64_t i = 0; i < warm_up; ++i) {
    if (!answer(end, source, in, number++)) return m.fail("warm-up: wrong or no message");
  }
  const std::uint64_t trips = m.agree(0);
  while (m.next_sample()) {
    for (std::uint64_t i = 0; i < trips; ++i) {
      if (!answer(end, source, in, number++)) return m.fail("wrong or no message");
    }
  }
  return true;
}

template <TransportEnd E>
bool burst_out(E& end, MessageSource& source, std::span<std::byte> ack, std::uint64_t count,
               std::uint64_t& number) {
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!end.send(source.message(number++))) return false;
  }
  return end.flush() && end.recv(ack) && check(ack, number - 1);
}

template <TransportEnd E>
bool burst_in(E& end, MessageSource& source, std::span<std::byte> in, std::uint64_t count,
              std::uint64_t& number) {
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!end.recv(in) || !check(in, number++)) return false;
  }
  return end.send(source.message(number - 1)) && end.flush();
}

/// The answer of a burst has the size of its messages, up to this.
inline constexpr std::size_t kMostAcked = 1024;

template <TransportEnd E>
bool one_way_member(Member& m, E& end, std::size_t bytes) {
  const std::size_t ack_bytes = std::min(bytes, kMostAcked);
  const bool client = m.index() == 0;
  MessageSource source(client ? bytes : ack_bytes);
  std::vector<std::byte> in(client ? ack_bytes : bytes);
  const auto burst = [&](std::uint64_t count, std::uint64_t& number) {
    return client ? burst_out(end, source, in, count, number)
                  : burst_in(end, source, in, count, number);
  };
  std::uint64_t number = 0;
  const std::uint64_t warm_up = m.options().smoke ? 4 : bytes >= 65536 ? 64 : 2048;
  if (!burst(warm_up, number)) return m.fail("warm-up: data lost or damaged");
  const std::uint64_t start = Clock::now();
  if (!burst(warm_up, number)) return m.fail("warm-up: data lost or damaged");
  const double each = Clock::to_ns(Clock::now() - start) / static_cast<double>(warm_up);
  const std::uint64_t count = m.agree(m.repeats_for(each, 5'000'000));
  while (m.next_sample()) {
    const std::uint64_t begin = Clock::now();
    if (!burst(count, number)) return m.fail("data lost or damaged");
    m.record(Clock::to_ns(Clock::now() - begin) / static_cast<double>(count));
  }
  return true;
}

inline std::uint64_t round_trip_warm_up(const GroupOptions& group, std::size_t bytes) {
  return group.smoke ? 4 : bytes >= 65536 ? 64 : 512;
}

}  // namespace detail

/// Opens a transport in both members and runs `body(member, end)` there.
template <Transport T, class Body>
std::optional<Outcome> run_pair(Context& context, const std::string& benchmark, T& transport,
                                std::size_t bytes, const GroupOptions& group, Body body) {
  if (const std::string why = transport.prepare(bytes); !why.empty()) {
    context.skip(benchmark, transport.name(), why);
    return std::nullopt;
  }
  Outcome outcome = run_group(group, [&](Member& m) {
    auto end = transport.open(m.index() == 0 ? Side::kClient : Side::kServer);
    if (!end) return m.fail("cannot open the connection");
    return body(m, *end);
  });
  if (!outcome.ok()) {
    context.failed(benchmark, transport.name(), outcome.failure);
    return std::nullopt;
  }
  return outcome;
}

/// Round-trip time in ns of messages of `bytes`.
template <Transport T>
std::optional<Row> round_trip(Context& context, const std::string& benchmark, T& transport,
                              std::size_t bytes, const GroupOptions& group) {
  const std::uint64_t warm_up = detail::round_trip_warm_up(group, bytes);
  const auto outcome =
      run_pair(context, benchmark, transport, bytes, group, [&](Member& m, auto& end) {
        return m.index() == 0 ? detail::drive_round_trips(m, end, bytes, warm_up)
                              : detail::answer_round_trips(m, end, bytes, warm_up);
      });
  if (!outcome) return std::nullopt;
  Row row = make_row(benchmark, transport.name(), static_cast<double>(bytes), "ns", *outcome);
  row.op_ns = row.stats.p50;
  return row;
}

enum class Figure { kMessageRate, kBandwidth };

/// Messages, or bytes, per second in one direction.
template <Transport T>
std::optional<Row> one_way(Context& context, const std::string& benchmark, T& transport,
                           std::size_t bytes, Figure figure, const GroupOptions& group) {
  const auto outcome =
      run_pair(context, benchmark, transport, bytes, group,
               [&](Member& m, auto& end) { return detail::one_way_member(m, end, bytes); });
  if (!outcome) return std::nullopt;
  const bool rate = figure == Figure::kMessageRate;
  Row row = make_row(benchmark, transport.name(), static_cast<double>(bytes),
                     rate ? "M msg/s" : "GB/s", *outcome);
  row.higher_is_better = true;
  row.op_ns = row.stats.p50;
  std::vector<double> runs = outcome->members.front().runs[0];
  for (double& ns : runs) ns = rate ? 1e3 / ns : static_cast<double>(bytes) / ns;
  row.stats = summarise_runs(runs);
  return row;
}

/// Variants for Context::point(): the transport is made anew for every measurement.
template <class Make>
Context::Variant round_trip_variant(std::string benchmark, Make make, std::size_t bytes,
                                    GroupOptions group) {
  return [=](Context& context) {
    auto transport = make();
    return round_trip(context, benchmark, transport, bytes, group);
  };
}

template <class Make>
Context::Variant one_way_variant(std::string benchmark, Make make, std::size_t bytes, Figure figure,
                                 GroupOptions group) {
  return [=](Context& context) {
    auto transport = make();
    return one_way(context, benchmark, transport, bytes, figure, group);
  };
}

}  // namespace clan::bench
