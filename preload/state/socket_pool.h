// The pool of Sockets. Their memory is never returned.
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// Takes a Socket; null if there is no memory.
Socket* take_socket();
/// Does the same under the pool's lock. The caller publishes the Socket before it unlocks: fork
/// counts published ones.
Socket* take_socket_under_lock();
/// Gives back a Socket without references, and resets it.
void give_back_socket(Socket* s);

/// Gives `s`, a socket of another process too, that process's `slot`. False: try later, as a fork
/// is under way and has counted the child in the old slot.
bool exchange_slot(Socket& s, OpenFileState& slot);

/// Locks the pool for fork, after the locks of epoll sets and of AF_CLAN.
void lock_sockets();

void unlock_sockets();

}  // namespace clan::preload
