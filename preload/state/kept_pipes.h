// Pipes that a receiver of SCM_RIGHTS still has to find by a descriptor of this process.
//
// A descriptor that has been sent may lie in its AF_UNIX socket for long. When this process closes its own meanwhile,
// and the process at the other end has closed too, no process would have the memory any more, and what lies unread in
// it would be lost. So a copy of the memfd stays here until the receiver has closed its end, which the count of
// holders in the pipe's page says. A few such pipes are kept; of more, the oldest goes, as does in time one whose
// receiver was killed.
//
// A process that ends keeps nothing.
#pragma once

namespace clan::preload {

struct Socket;

/// The process is about to close the last descriptor of a socket that it has passed on.
void keep_for_receivers(const Socket& s);
/// Those whose receivers have closed go. To be called now and then.
void sweep_kept();
/// Of those kept with a descriptor in [first, last]: no more. `already_closed`: these numbers are not ours any more.
/// How many.
int close_kept(unsigned first, unsigned last, bool already_closed);
/// How many are kept.
int kept_pipes();

}  // namespace clan::preload
