// Peers on other hosts: whether the environment asks for them (CLAN_KEY, CLAN_NETWORK_MODE), the
// engine's contexts that can reach them, and how they are called.
//
// An endpoint of another host is asked for where its user's processes there can be asked: at one
// UDP port, the directory, which is the same on all hosts. Any thread.
#pragma once

#include <clan/context.h>

#include <string>

#include "system/address.h"

namespace clan::ofi {

/// Whether endpoints talk to other hosts.
bool reaches_other_hosts();
/// A context of the engine, on the network where that is asked for.
Result<Context> make_context(ContextOptions options);
/// What the engine knows an endpoint as: on our host, or on the one that its name says.
std::string service_at(const Name& name);
/// Says, once, what to set where an endpoint of another host has been asked for and none can be
/// reached.
void say_what_is_missing(const Name& name);
/// Says, once, what may be wrong where an endpoint of another host has not accepted; `err`: why.
/// Nothing where time may mend it and the log does not ask, or the endpoint is of this host.
void say_why_none(const Name& name, int err);

/// What others find our endpoint by, on a host that we reach: `own`, or where that is the
/// loopback's, the address that packets to them leave from.
SocketAddress shown_to(const SocketAddress& own, const Name& peer);

/// How a peer is called that says it has this address. False: it is on another host, and claims to
/// be on ours. `far`: whether it is, as its connection tells.
bool name_peer(const SocketAddress& says, bool far, Name* name);

}  // namespace clan::ofi
