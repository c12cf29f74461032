// What a context knows of its paths to other hosts (ContextOptions::network): for tools and for
// logs.
#pragma once

#include <clan/context.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace clan {

/// The path to a peer on another host, as this end sees it.
struct PathReport {
  std::string address;              ///< the peer's
  const char* packets = "sockets";  ///< how this end's leave: or "xdp-stack", "xdp-driver"
  /// of packets, the peer's delay taken off
  std::uint64_t round_trip_ns = 0, least_round_trip_ns = 0;
  std::uint32_t packet_bytes = 0;  ///< the largest packet that is known to arrive
  std::uint64_t window_bytes = 0;
  std::uint64_t packets_sent = 0, packets_received = 0;
  std::uint64_t packets_lost = 0;  ///< and sent again; those that were late only are taken off
  std::uint64_t timeouts = 0;
};

/// Asks the context or the directory at "HOST" or "HOST:PORT" as often as `round_trips_ns` has
/// room, and waits `interval_ms` between; every answer's time goes there. The errors are those of
/// Stream::connect.
CLAN_EXPORT Result<PathReport> ping(Context& context, const std::string& host,
                                    std::span<std::uint64_t> round_trips_ns,
                                    std::uint32_t interval_ms, std::int64_t timeout_ms);

/// Which user has that UDP port of this host: of NetworkOptions::directory_port, the one whose
/// program holds the directory. Nothing: nobody has it, or that cannot be known.
CLAN_EXPORT std::optional<unsigned> user_of_udp_port(std::uint16_t port);

/// Whether packets of this process to HOST (empty: anywhere) could go by AF_XDP, and if not why.
CLAN_EXPORT Status xdp_possible(const std::string& host);

}  // namespace clan
