// A client and a server of one transport, in a process each.
#pragma once

#include <optional>
#include <string>

#include "support/context.h"
#include "transports/transport.h"

namespace clan::bench {

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

}  // namespace clan::bench
