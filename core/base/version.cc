#include <clan/version.h>

namespace clan {

const char* version() noexcept { return CLAN_VERSION; }

}  // namespace clan
