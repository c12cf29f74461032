// What /proc tells of other processes, besides what clan/system_call.h asks.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace clan::sys {

/// /proc counts processes as our pid namespace does.
bool proc_is_ours();

/// The process of that thread has no memory of the file with this inode: all its mappings are
/// shown, and none is of that. When in doubt, no. Changes errno.
bool maps_nothing_of(pid_t thread, std::uint64_t inode);

}  // namespace clan::sys
