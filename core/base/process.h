// What /proc shows of other processes, apart from what clan/detail/system_call.h asks.
#pragma once

namespace clan::sys {

/// /proc counts processes as our pid namespace does.
bool proc_is_ours();

}  // namespace clan::sys
