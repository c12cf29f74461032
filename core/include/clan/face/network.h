// Paths to other hosts that a context knows (ContextOptions::network), for tools and logs.
#pragma once

#include <clan/context.h>
#include <clan/face/path_page.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace clan {

/// Asks the context or directory at "HOST" or "HOST:PORT" once per `round_trips_ns`, each
/// `interval_ms`, and stores the times. Returns what this end knows of the path; errors as
/// Stream::connect().
CLAN_EXPORT Result<PathValues> ping(Context& context, const std::string& host,
                                    std::span<std::uint64_t> round_trips_ns,
                                    std::uint32_t interval_ms, std::int64_t timeout_ms);

/// Returns the user of that UDP port: of NetworkOptions::directory_port, the directory holder's.
/// Nothing: nobody, or not known.
CLAN_EXPORT std::optional<unsigned> user_of_udp_port(std::uint16_t port);

/// Whether packets of this process to HOST (empty: anywhere) could go by AF_XDP, and if not why.
CLAN_EXPORT Status xdp_possible(const std::string& host);

}  // namespace clan
