// /proc/self/net/tcp and tcp6: which user owns a TCP socket of our own network namespace, where
// sock_diag is refused.
//
// The kernel says there what it says by sock_diag: addresses, state, owner as our user namespace
// has it, and inode, of all sockets of the namespace that the reader is in. A file that is not
// procfs's is not believed. It is slower: all sockets are read until the one is found, so a
// namespace with very many is not searched to the end.
#pragma once

#include "kernel/sock_diag.h"

namespace clan::preload {

/// The connected socket at `local` whose other end is `remote`. False: there is none, or it cannot
/// be said.
bool find_in_tcp_tables(const Endpoint& local, const Endpoint& remote, SockDiag::Found* found);

}  // namespace clan::preload
