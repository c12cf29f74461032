// The loop that measures round trips, written once for every transport: the client sends, the
// server sends the same back; every trip is timed. Both check every message (support/pattern.h).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/clock.h"
#include "support/pattern.h"
#include "transports/pair.h"

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

inline std::uint64_t round_trip_warm_up(const GroupOptions& group, std::size_t bytes) {
  return group.smoke ? 4 : bytes >= 65536 ? 64 : 512;
}

}  // namespace detail

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

/// A variant for Context::point(): the transport is made anew for every measurement.
template <class Make>
Context::Variant round_trip_variant(std::string benchmark, Make make, std::size_t bytes,
                                    GroupOptions group) {
  return [=](Context& context) {
    auto transport = make();
    return round_trip(context, benchmark, transport, bytes, group);
  };
}

}  // namespace clan::bench
