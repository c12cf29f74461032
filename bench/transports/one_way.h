// The loop that measures one direction, written once for every transport: the client sends a burst,
// the server answers once at its end; every burst gives one figure. Both check every message
// (support/pattern.h).
#pragma once

#include <algorithm>
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
    if (client) m.did(count);
  }
  return true;
}

}  // namespace detail

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

/// A variant for Context::point(): the transport is made anew for every measurement.
template <class Make>
Context::Variant one_way_variant(std::string benchmark, Make make, std::size_t bytes, Figure figure,
                                 GroupOptions group) {
  return [=](Context& context) {
    auto transport = make();
    return one_way(context, benchmark, transport, bytes, figure, group);
  };
}

}  // namespace clan::bench
