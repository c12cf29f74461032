// What the sender of a packet that cannot go is answered: ICMP errors, as a router would send them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "packet.h"

namespace clan::ip {

/// "Host unreachable", or of IPv6 "address unreachable". Empty: such a packet is not answered: an
/// error itself, a later fragment, or not of one sender to one receiver.
std::vector<std::byte> unreachable(const Packet& packet, std::span<const std::byte> bytes);
/// "Fragmentation needed", or for IPv6 "packet too big"; empty in the same cases.
std::vector<std::byte> too_big(const Packet& packet, std::span<const std::byte> bytes,
                               std::size_t mtu);

}  // namespace clan::ip
