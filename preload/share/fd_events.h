// What happens to descriptors, for all tables of them.
#pragma once

namespace clan::preload {

/// Forgets a descriptor that is being closed, or was closed unseen. Not in a child of vfork(): the
/// parent, whose tables these are, keeps it open.
void gone(int fd);
/// Does the same before the program closes it, while it can still be used.
void about_to_go(int fd);
/// Forgets descriptors that are about to be closed.
void gone_range(unsigned first, unsigned last);

/// Notes that `to` names the same open file as `from` now.
void same(int from, int to);

}  // namespace clan::preload
