// What happens to descriptors, for all modules that have a table of them.
#pragma once

namespace clan::preload {

/// The descriptor is closed, or about to be, or has been by somebody we did not see, whatever it is
/// to us. What a child of vfork closes stays open in its parent, whose tables these are.
void gone(int fd);

/// The program is about to close it: it is still what it is to us.
void about_to_go(int fd);

/// All of these are about to be closed.
void gone_range(unsigned first, unsigned last);

/// `to` names the same open file as `from` from now on.
void same(int from, int to);

}  // namespace clan::preload
