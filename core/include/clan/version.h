// The version of the libclan.so that is loaded, which may not be the one compiled against.
#pragma once

#include <clan/detail/export.h>

namespace clan {

/// "major.minor.patch", a string literal. Any thread.
[[nodiscard]] CLAN_EXPORT const char* version() noexcept;

}  // namespace clan
