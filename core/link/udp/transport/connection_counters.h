// What a connection of the UDP link counts.
#pragma once

#include <cstdint>

namespace clan::udp {

struct ConnectionCounters {
  std::uint64_t packets_sent = 0, packets_received = 0, bytes_sent = 0, bytes_received = 0;
  std::uint64_t lost = 0, spurious = 0, timeouts = 0, duplicates = 0, acks_sent = 0, later = 0;
};

}  // namespace clan::udp
