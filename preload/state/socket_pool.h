// The pool of Sockets. Their memory is never returned.
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// Null: no memory.
Socket* take_socket();
/// Nobody has it: it is empty from now on.
void give_back_socket(Socket* s);

/// The pool of Sockets, for fork. Behind the locks of epoll sets and of AF_CLAN.
void lock_sockets();

void unlock_sockets();

}  // namespace clan::preload
