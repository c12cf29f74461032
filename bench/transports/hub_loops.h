// The measuring loops over many connections (figures 5 and 6 of the CLAN driver interface paper).
//
// idle_round_trip   n connections open, one of them in use: what do the others cost?
// offered_load      a request outstanding on each of n connections: how many answers per second?
#pragma once

#include "transports/loops.h"

namespace clan::bench {

inline constexpr std::size_t kHubMessageBytes = 64;

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

/// Opens a hub of `connections` in both members and runs `body(member, hub)` there.
template <HubTransport T, class Body>
std::optional<Outcome> run_hubs(Context& context, const std::string& benchmark, T& transport,
                                std::size_t connections, Body body) {
  return context.run(benchmark, transport.name(), transport.prepare(connections),
                     context.across_cores(), [&](Member& m) {
                       auto hub = transport.open(m.side(), connections);
                       if (!hub) return m.fail("cannot open the connections");
                       m.barrier();
                       return body(m, *hub);
                     });
}

/// Round-trip time in ns on one of `connections` connections, the others idle.
template <class Make>
Context::Variant idle_variant(std::string benchmark, Make make, std::size_t connections) {
  return [=](Context& context) -> std::optional<Row> {
    auto transport = make();
    const auto outcome =
        run_hubs(context, benchmark, transport, connections, [&](Member& m, auto& hub) {
          const std::uint64_t warm_up = m.options().smoke ? 4 : 256;
          if (m.index() == 1)
            return serve_trips(m, warm_up, [&](std::uint64_t n) { return serve(m, hub, n); });
          MessageSource source(kHubMessageBytes);
          const auto active = static_cast<std::uint32_t>(connections / 2);
          return time_trips(m, warm_up,
                            [&](std::uint64_t n) { return ask(hub, active, source, n); });
        });
    if (!outcome) return std::nullopt;
    const auto x = static_cast<double>(connections);
    Row row = make_row(benchmark, transport.name(), x, "ns", *outcome);
    row.x_name = "endpoints";
    return row;
  };
}

/// Thousand requests per second with one request outstanding on each of `connections`.
template <class Make>
Context::Variant load_variant(std::string benchmark, Make make, std::size_t connections) {
  return [=](Context& context) -> std::optional<Row> {
    auto transport = make();
    const auto outcome =
        run_hubs(context, benchmark, transport, connections, [&](Member& m, auto& hub) {
          MessageSource source(kHubMessageBytes);
          const auto run = [&](std::uint64_t requests) {
            return m.index() == 0 ? load(m, hub, connections, requests, source)
                                  : serve(m, hub, requests);
          };
          const std::uint64_t least = m.options().smoke ? 4 : 512;
          return time_bursts(m, std::max<std::uint64_t>(connections, least), run, 1'000'000,
                             connections);
        });
    if (!outcome) return std::nullopt;
    const auto x = static_cast<double>(connections);
    Row row = rate_row(benchmark, transport.name(), x, "k req/s", *outcome, 1e6);
    row.x_name = "connections";
    return row;
  };
}

}  // namespace clan::bench
