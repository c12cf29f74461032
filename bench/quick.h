// The short comparison ./quickstart ends with: CLAN beside kernel TCP and UNIX sockets.
#pragma once

#include "support/context.h"

namespace clan::bench {

void quick(Context& context);

}  // namespace clan::bench
