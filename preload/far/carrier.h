// The carrier of this process (libclan-carrier.so), by which connections to other hosts move
// (CLAN_NET): loaded when the first such connection is in use, and what a socket has to do with it.
#pragma once

#include "far/carrier_table.h"
#include "os/sock_diag.h"
#include "state/socket.h"

namespace clan::preload {

/// What the carrier's threads do to sockets: migrate/far_calls.cc fills it in.
extern constinit CarrierCalls carrier_calls;

/// Has it loaded, the first time. False: there is none, which has been said.
bool has_carrier();

/// It has been, by this process.
bool carrier_is_loaded();

/// Looks for the other end of the connection, or waits for it. False: no memory or descriptors.
bool meet_far(Socket& s, const Route& route);
CarrierStage far_stage(const Socket& s);
/// The socket's pipe is to be carried. False: the other end has gone.
bool carry(Socket& s);

/// Something has been done to the pipe of a connection that is carried.
void wake_carrier(Socket& s);
/// By a thread that waits for what is carried: it looks at the network itself. True: something has
/// come.
bool look_at_network();
/// It goes to sleep, and has slept, as in the table.
bool begin_network_sleep(bool may_fetch, PacketFds* watched);
bool end_network_sleep(bool fetches);
/// TCP says that the other end is gone. True: all that came from it is in the pipe.
bool is_all_there(Socket& s);
/// It is no matter of the carrier's any more.
void let_go_of_far(Socket& s);

/// The process ends.
void finish_carrier();
void carrier_before_fork();
void carrier_after_fork(bool in_child);

/// It is, or was when somebody looked: a glance.
// relaxed: written before the pipe is known
inline bool is_far(const Socket& s) { return s.far.load(std::memory_order_relaxed) != nullptr; }

}  // namespace clan::preload
