// The pool of Sockets. Their memory is never returned.
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// Null: no memory.
Socket* take_socket();
/// The caller has the lock of the pool, and publishes the Socket before it lets go: fork counts
/// those that are published.
Socket* take_socket_under_lock();
/// Nobody has it: it is empty from now on.
void give_back_socket(Socket* s);

/// The socket is another process's, which has `slot`: it has that one from now on. False: later, as
/// the process forks, and has counted the child in the one before.
bool exchange_slot(Socket& s, OpenFileState& slot);

/// The pool of Sockets, for fork. Behind the locks of epoll sets and of AF_CLAN.
void lock_sockets();

void unlock_sockets();

}  // namespace clan::preload
