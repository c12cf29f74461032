// What a context knows of its paths to other hosts (ContextOptions::network): for tools and for
// logs.
#pragma once

#include <clan/context.h>
#include <clan/face/path_page.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace clan {

/// Asks the context or the directory at "HOST" or "HOST:PORT" as often as `round_trips_ns` has
/// room, and waits `interval_ms` between; every answer's time goes there. Returns what this end
/// knows of the path then. The errors are those of Stream::connect.
CLAN_EXPORT Result<PathValues> ping(Context& context, const std::string& host,
                                    std::span<std::uint64_t> round_trips_ns,
                                    std::uint32_t interval_ms, std::int64_t timeout_ms);

/// Which user has that UDP port of this host: of NetworkOptions::directory_port, the one whose
/// program holds the directory. Nothing: nobody has it, or that cannot be known.
CLAN_EXPORT std::optional<unsigned> user_of_udp_port(std::uint16_t port);

/// Whether packets of this process to HOST (empty: anywhere) could go by AF_XDP, and if not why.
CLAN_EXPORT Status xdp_possible(const std::string& host);

}  // namespace clan
