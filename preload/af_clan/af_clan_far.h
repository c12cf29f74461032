// Names of AF_CLAN on other hosts, "udp:HOST/NAME", for streams (CLAN_NET): the bytes are handed on
// by the carrier (carrier/relay.h), and the program's descriptor is a connection to it, inside this
// host.
#pragma once

#include "af_clan/af_clan_name.h"

namespace clan::preload {

/// It begins as names of other hosts do; nobody may have it here.
bool is_far_name(const ClanName& name);

/// connect() of a stream socket: returns when the other host has answered, whether the socket waits
/// or not. 0, or -1 with errno.
int connect_far(int fd, const ClanName& name);

/// `name` listens: with CLAN_NET other hosts may call it. `open` connects to it; -errno.
void offer_to_other_hosts(const ClanName& name, int (*open)(const char* name, std::size_t size));

}  // namespace clan::preload
