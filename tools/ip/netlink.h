// Addresses, MTU and routes of a device, by netlink.
#pragma once

#include <clan/result.h>

#include "address.h"

namespace clan::ip {

Status add_address(unsigned device, const Prefix& address);
Status set_up(unsigned device, unsigned mtu);
/// A descriptor that is readable when a device of this namespace has changed or gone.
Result<int> watch_devices();
Status add_route(unsigned device, const Prefix& to);

}  // namespace clan::ip
