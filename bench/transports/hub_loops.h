// The measuring loops over many connections (figures 5 and 6 of the CLAN driver interface paper).
//
// idle_round_trip   n connections open, one of them in use: what do the others cost?
// offered_load      a request outstanding on each of n connections: how many answers per second?
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "support/clock.h"
#include "support/context.h"
#include "support/pattern.h"
#include "transports/transport.h"

namespace clan::bench {

inline constexpr std::size_t kHubMessageBytes = 64;

namespace detail {

/// Serves `requests` requests, whichever connections they come from.
template <ConnectionHub H>
bool serve(Member& m, H& hub, std::uint64_t requests) {
  std::array<std::uint32_t, 64> ready;
  std::array<std::byte, kHubMessageBytes> buffer;
  while (requests > 0) {
    const std::size_t n = hub.wait(ready);
    if (n == 0) return m.fail("waiting failed");
    for (std::size_t k = 0; k < n; ++k) {
      if (!hub.recv(ready[k], buffer)) return m.fail("no request where one was announced");
      if (buffer.front() != buffer.back()) return m.fail("damaged request");
      if (!hub.send(ready[k], buffer)) return m.fail("cannot answer");
      --requests;
    }
  }
  return true;
}

template <ConnectionHub H>
bool ask(H& hub, std::uint32_t i, MessageSource& source, std::uint64_t number) {
  std::array<std::uint32_t, 64> ready;
  std::array<std::byte, kHubMessageBytes> in;
  return hub.send(i, source.message(number)) && hub.wait(ready) == 1 && ready[0] == i &&
         hub.recv(i, in) && check(in, number);
}

/// A request on each connection, again as soon as it was answered, until `requests` answers came.
template <ConnectionHub H>
bool load(Member& m, H& hub, std::size_t connections, std::uint64_t requests,
          MessageSource& source) {
  std::array<std::uint32_t, 64> ready;
  std::array<std::byte, kHubMessageBytes> in;
  std::uint64_t sent = 0;
  for (std::uint32_t i = 0; i < connections && sent < requests; ++i, ++sent) {
    if (!hub.send(i, source.message(i))) return m.fail("cannot send");
  }
  for (std::uint64_t answered = 0; answered < requests;) {
    const std::size_t n = hub.wait(ready);
    if (n == 0) return m.fail("waiting failed");
    for (std::size_t k = 0; k < n; ++k, ++answered) {
      if (!hub.recv(ready[k], in) || !check(in, ready[k])) return m.fail("wrong answer");
      if (sent == requests) continue;
      if (!hub.send(ready[k], source.message(ready[k]))) return m.fail("cannot send");
      ++sent;
    }
  }
  return true;
}

template <ConnectionHub H>
bool idle_round_trip_member(Member& m, H& hub, std::size_t connections) {
  const std::uint64_t warm_up = m.options().smoke ? 4 : 256;
  if (m.index() == 1) {
    if (!serve(m, hub, warm_up)) return false;
    const std::uint64_t trips = m.agree(0);
    while (m.next_sample()) {
      if (!serve(m, hub, trips)) return false;
    }
    return true;
  }
  MessageSource source(kHubMessageBytes);
  const auto active = static_cast<std::uint32_t>(connections / 2);
  std::uint64_t number = 0;
  const std::uint64_t start = Clock::now();
  while (number < warm_up) {
    if (!ask(hub, active, source, number++)) return m.fail("warm-up: wrong or no answer");
  }
  const double each = Clock::to_ns(Clock::now() - start) / static_cast<double>(warm_up);
  const std::uint64_t trips = m.agree(m.repeats_for(each));
  m.reserve(trips);
  while (m.next_sample()) {
    std::uint64_t last = Clock::now();
    for (std::uint64_t i = 0; i < trips; ++i) {
      if (!ask(hub, active, source, number++)) return m.fail("wrong or no answer");
      const std::uint64_t now = Clock::now();
      m.record(Clock::to_ns(now - last));
      last = now;
    }
  }
  return true;
}

template <ConnectionHub H>
bool offered_load_member(Member& m, H& hub, std::size_t connections) {
  const std::uint64_t warm_up = std::max<std::uint64_t>(connections, m.options().smoke ? 4 : 512);
  MessageSource source(kHubMessageBytes);
  const bool client = m.index() == 0;
  const auto run = [&](std::uint64_t requests) {
    return client ? load(m, hub, connections, requests, source) : serve(m, hub, requests);
  };
  if (!run(warm_up)) return false;
  const std::uint64_t start = Clock::now();
  if (!run(warm_up)) return false;
  const double each = Clock::to_ns(Clock::now() - start) / static_cast<double>(warm_up);
  const std::uint64_t requests =
      m.agree(std::max<std::uint64_t>(m.repeats_for(each, 1'000'000), connections));
  while (m.next_sample()) {
    const std::uint64_t begin = Clock::now();
    if (!run(requests)) return false;
    m.record(Clock::to_ns(Clock::now() - begin) / static_cast<double>(requests));
    if (client) m.did(requests);
  }
  return true;
}

}  // namespace detail

/// Opens a hub of `connections` in both members and runs `body(member, hub)` there.
template <HubTransport T, class Body>
std::optional<Outcome> run_hubs(Context& context, const std::string& benchmark, T& transport,
                                std::size_t connections, const GroupOptions& group, Body body) {
  if (const std::string why = transport.prepare(connections); !why.empty()) {
    context.skip(benchmark, transport.name(), why);
    return std::nullopt;
  }
  Outcome outcome = run_group(group, [&](Member& m) {
    auto hub = transport.open(m.index() == 0 ? Side::kClient : Side::kServer, connections);
    if (!hub) return m.fail("cannot open the connections");
    m.barrier();
    return body(m, *hub);
  });
  if (!outcome.ok()) {
    context.failed(benchmark, transport.name(), outcome.failure);
    return std::nullopt;
  }
  return outcome;
}

/// Round-trip time in ns on one of `connections` connections, the others idle.
template <HubTransport T>
std::optional<Row> idle_round_trip(Context& context, const std::string& benchmark, T& transport,
                                   std::size_t connections) {
  const auto outcome = run_hubs(
      context, benchmark, transport, connections, context.across_cores(),
      [&](Member& m, auto& hub) { return detail::idle_round_trip_member(m, hub, connections); });
  if (!outcome) return std::nullopt;
  Row row = make_row(benchmark, transport.name(), static_cast<double>(connections), "ns", *outcome);
  row.x_name = "endpoints";
  row.op_ns = row.stats.p50;
  return row;
}

/// Thousand requests per second with one request outstanding on each of `connections`.
template <HubTransport T>
std::optional<Row> offered_load(Context& context, const std::string& benchmark, T& transport,
                                std::size_t connections) {
  const auto outcome = run_hubs(
      context, benchmark, transport, connections, context.across_cores(),
      [&](Member& m, auto& hub) { return detail::offered_load_member(m, hub, connections); });
  if (!outcome) return std::nullopt;
  Row row =
      make_row(benchmark, transport.name(), static_cast<double>(connections), "k req/s", *outcome);
  row.x_name = "connections";
  row.higher_is_better = true;
  row.op_ns = row.stats.p50;
  std::vector<double> runs = outcome->members.front().runs[0];
  for (double& ns : runs) ns = 1e6 / ns;
  row.stats = summarise_runs(runs);
  return row;
}

}  // namespace clan::bench
