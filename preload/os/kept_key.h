// The pre-shared key of connections to other hosts (CLAN_NET), read when the library starts. A
// server that begins as root and works as another user, or in a directory of its own (chroot),
// cannot read the file any more when the first such connection is there; so the key waits in
// memory, which the children of fork() inherit. A program that is executed begins anew.
//
// The memory is left out of core dumps. Without CLAN_NET, or where the mode needs no key, nothing
// is read.
#pragma once

#include <string_view>

#include "clan/face/settings.h"

namespace clan::preload {

/// When the library starts, with one thread. Says nothing: what is wrong with the key is said when
/// it is needed.
void keep_key();

/// What has been kept of the file that these settings name, for as long as the process. Empty: the
/// file is to be read. What is of no use to these settings (another file, a mode without a key) is
/// wiped.
std::string_view kept_key(const Settings& settings);

}  // namespace clan::preload
